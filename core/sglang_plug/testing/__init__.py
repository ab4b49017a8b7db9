"""Conformance tests for plugin authors: each check raises ``AssertionError`` naming the first failing case."""

from __future__ import annotations

from .model.adapters import check_adapter_format
from .model.attention import check_attention_backend
from .model.model import check_model
from .model.quantization import check_quantization
from .model.ranks import check_ranks
from .model.recurrence import check_recurrence
from .model.sampling import check_sampling
from .server.route import check_route
from .serving.drafter import check_drafter
from .serving.eviction import check_eviction_policy
from .serving.logits_processor import check_logits_processor
from .serving.prefix_cache import check_prefix_cache
from .serving.schedule import check_schedule_policy
from .serving.step_extension import check_step_extension
from .text.grammars.grammar import check_grammar_backend
from .text.parser import check_output_parser
from .text.tokenizer import check_tokenizer

__all__ = [
    "check_adapter_format",
    "check_attention_backend",
    "check_drafter",
    "check_eviction_policy",
    "check_grammar_backend",
    "check_logits_processor",
    "check_model",
    "check_output_parser",
    "check_prefix_cache",
    "check_quantization",
    "check_ranks",
    "check_recurrence",
    "check_route",
    "check_sampling",
    "check_schedule_policy",
    "check_step_extension",
    "check_tokenizer",
]
