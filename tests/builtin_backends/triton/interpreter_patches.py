"""Makes Triton's interpreter faster, without a change of what it computes.

Before every call of a function of a kernel the interpreter replaces all builtin functions of the language, although
those that the kernel's launch replaced still are; looking for them takes most of the time of small kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def faster_calls(patch_lang: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return ``patch_lang`` for functions whose language is not patched yet, and nothing to do for others."""

    def patch(fn: Any) -> Any:
        if all(map(_is_patched, _languages(fn))):
            return interpreter._LangPatchScope()
        return patch_lang(fn)

    return patch


def _languages(fn: Any) -> list[ModuleType]:
    modules = filter(inspect.ismodule, fn.__globals__.values())
    return [one for one in modules if one in (tl, tl.core)]


def _is_patched(language: ModuleType) -> bool:
    return not tl.core.is_builtin(language.arange) and not tl.core.is_builtin(language.tensor.to)
