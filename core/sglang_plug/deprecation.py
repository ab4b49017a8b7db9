"""Warnings about deprecated parts of the contract, attributed to the plugin that uses them."""

from __future__ import annotations

import inspect
import sys
import warnings
from types import FrameType
from typing import Any

INNER = frozenset(
    {"sglang_plug", "sglang_plug_api", "sglang_plug_backends", "sglang_plug_models", "importlib", "pluggy"}
)
"""Packages between a deprecated function and the plugin that uses it."""


def warn_deprecated(text: str, *, owner: Any = None) -> None:
    """Warn that something is deprecated; ``text`` says what, since when, and what to use instead.

    The ``DeprecationWarning`` names the module that uses it, and has the location of its use, so that filters for the
    plugin apply to it, and each location warns once. The location is the innermost caller outside of sglang-plug.

    Args:
        text: a sentence without punctuation at its end.
        owner: class or function that is deprecated in its form, for a use without a call: a class with an old method.
    """
    if owner is not None:
        module = sys.modules.get(owner.__module__)
        file, line = _definition(owner)
        variables: dict[str, Any] = vars(module) if module is not None else {}
        name = owner.__module__
    else:
        frame = _caller()
        variables, file, line = frame.f_globals, frame.f_code.co_filename, frame.f_lineno
        name = variables.get("__name__", file)
    registry = variables.setdefault("__warningregistry__", {})
    warnings.warn_explicit(f"{name}: {text}", DeprecationWarning, file, line, name, registry)


def _caller() -> FrameType:
    """Return the innermost frame outside of sglang-plug, or the outermost one."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in INNER:
        frame = frame.f_back
    return frame


def _definition(owner: Any) -> tuple[str, int]:
    """Return the file and line of a class or function; its module and 1 if its source is not available."""
    try:
        return inspect.getsourcefile(owner) or owner.__module__, inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return owner.__module__, 1
