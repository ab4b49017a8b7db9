"""Conformance kits for plugin authors: each check raises ``AssertionError`` naming the first failing case."""

from __future__ import annotations

from .adapters import check_adapter_format
from .attention import check_attention_backend
from .drafter import check_drafter
from .drawing import check_drawing
from .grammar import check_grammar_backend
from .model import check_model
from .parser import check_output_parser
from .quantization import check_quantization
from .ranks import check_ranks
from .recurrence import check_recurrence

__all__ = [
    "check_adapter_format",
    "check_attention_backend",
    "check_drafter",
    "check_drawing",
    "check_grammar_backend",
    "check_model",
    "check_output_parser",
    "check_quantization",
    "check_ranks",
    "check_recurrence",
]
