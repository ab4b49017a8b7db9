"""Conformance tests for plugin authors: each check raises ``AssertionError`` naming the first failing case."""

from __future__ import annotations

from .adapters import check_adapter_format
from .attention import check_attention_backend
from .drafter import check_drafter
from .grammars.grammar import check_grammar_backend
from .logits_processor import check_logits_processor
from .model import check_model
from .parser import check_output_parser
from .quantization import check_quantization
from .ranks import check_ranks
from .recurrence import check_recurrence
from .sampling import check_sampling
from .step_extension import check_step_extension

__all__ = [
    "check_adapter_format",
    "check_attention_backend",
    "check_drafter",
    "check_grammar_backend",
    "check_logits_processor",
    "check_model",
    "check_output_parser",
    "check_quantization",
    "check_ranks",
    "check_recurrence",
    "check_sampling",
    "check_step_extension",
]
