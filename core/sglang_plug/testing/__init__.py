"""Conformance kits for plugin authors: each check raises ``AssertionError`` naming the first failing case."""

from __future__ import annotations

from .attention import check_attention_backend
from .drawing import check_drawing
from .grammar import check_grammar_backend
from .model import check_model
from .parser import check_output_parser
from .quantization import check_quantization

__all__ = [
    "check_attention_backend",
    "check_drawing",
    "check_grammar_backend",
    "check_model",
    "check_output_parser",
    "check_quantization",
]
