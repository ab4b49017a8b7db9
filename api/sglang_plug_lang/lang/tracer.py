"""Replacement for ``sglang.lang.tracer``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_plug_lang.execution.tracing import PrefixEnd as StopTracing
from sglang_plug_lang.execution.tracing import Trace
from sglang_plug_lang.program import Function

__all__ = ["StopTracing", "Trace", "extract_prefix_by_tracing", "trace_program"]


def trace_program(program: Function, arguments: Mapping[str, Any], backend: Any = None) -> Trace:
    """Return what a program appends, without running it; see ``Function.trace``."""
    return program.trace(backend=backend, **arguments)


def extract_prefix_by_tracing(program: Function, backend: Any = None) -> str:
    """Return the constant beginning of a program; see ``Function.prefix``."""
    return program.prefix(backend)
