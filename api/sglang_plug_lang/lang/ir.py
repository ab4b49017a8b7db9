"""Replacement for ``sglang.lang.ir``: regular expressions of types, and the expressions under SGLang's names.

The classes are for ``isinstance``; their fields have the names of ``sglang_plug_lang.ir``, except that
``SglSeparateReasoning``, ``SglConcateAndAppend``, ``SglCommitLazy``, ``SglFork`` and ``SglVariable`` are created as
SGLang's. There are no videos: ``SglVideo`` refuses.
"""

from __future__ import annotations

from typing import NoReturn

from sglang_plug_lang.errors import LanguageError
from sglang_plug_lang.execution.tracing import Argument as SglArgument
from sglang_plug_lang.execution.tracing import TracedVariable as SglVariable
from sglang_plug_lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from sglang_plug_lang.ir import AppendForks as SglConcateAndAppend
from sglang_plug_lang.ir import CachePrefix as SglCommitLazy
from sglang_plug_lang.ir import Concatenation as SglExprList
from sglang_plug_lang.ir import Expression as SglExpr
from sglang_plug_lang.ir import Fork as SglFork
from sglang_plug_lang.ir import ForkItem as SglGetForkItem
from sglang_plug_lang.ir import Generate as SglGen
from sglang_plug_lang.ir import GenerationOptions as SglSamplingParams
from sglang_plug_lang.ir import Image as SglImage
from sglang_plug_lang.ir import RoleBegin as SglRoleBegin
from sglang_plug_lang.ir import RoleEnd as SglRoleEnd
from sglang_plug_lang.ir import ScopeBegin as SglVarScopeBegin
from sglang_plug_lang.ir import ScopeEnd as SglVarScopeEnd
from sglang_plug_lang.ir import Select as SglSelect
from sglang_plug_lang.ir import SeparateReasoning as SglSeparateReasoning
from sglang_plug_lang.ir import Text as SglConstantText
from sglang_plug_lang.program import Function as SglFunction


class SglVideo(SglExpr):
    """A video, which no backend here supports."""

    def __init__(self, path: str, num_frames: int) -> None:
        _refuse_video(path)


def _refuse_video(path: str) -> NoReturn:
    raise LanguageError(
        f"videos are not supported, so {path!r} cannot be appended: append some of its frames as images"
    )


__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "SglArgument",
    "SglCommitLazy",
    "SglConcateAndAppend",
    "SglConstantText",
    "SglExpr",
    "SglExprList",
    "SglFork",
    "SglFunction",
    "SglGen",
    "SglGetForkItem",
    "SglImage",
    "SglRoleBegin",
    "SglRoleEnd",
    "SglSamplingParams",
    "SglSelect",
    "SglSeparateReasoning",
    "SglVarScopeBegin",
    "SglVarScopeEnd",
    "SglVariable",
    "SglVideo",
]
