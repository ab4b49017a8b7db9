"""Replacement for ``sglang.lang.ir``: regular expressions of types, and the expressions under SGLang's names.

The classes are for ``isinstance``; their fields have the names of ``sglang_plug_lang.ir``.
"""

from __future__ import annotations

from sglang_plug_lang.execution.tracing import Placeholder as SglArgument
from sglang_plug_lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR
from sglang_plug_lang.ir import Concatenation as SglExprList
from sglang_plug_lang.ir import Expression as SglExpr
from sglang_plug_lang.ir import Generate as SglGen
from sglang_plug_lang.ir import GenerationOptions as SglSamplingParams
from sglang_plug_lang.ir import Image as SglImage
from sglang_plug_lang.ir import RoleBegin as SglRoleBegin
from sglang_plug_lang.ir import RoleEnd as SglRoleEnd
from sglang_plug_lang.ir import ScopeBegin as SglVarScopeBegin
from sglang_plug_lang.ir import ScopeEnd as SglVarScopeEnd
from sglang_plug_lang.ir import Select as SglSelect
from sglang_plug_lang.ir import Text as SglConstantText
from sglang_plug_lang.program import Function as SglFunction

__all__ = [
    "REGEX_BOOL",
    "REGEX_FLOAT",
    "REGEX_INT",
    "REGEX_STR",
    "SglArgument",
    "SglConstantText",
    "SglExpr",
    "SglExprList",
    "SglFunction",
    "SglGen",
    "SglImage",
    "SglRoleBegin",
    "SglRoleEnd",
    "SglSamplingParams",
    "SglSelect",
    "SglVarScopeBegin",
    "SglVarScopeEnd",
]
