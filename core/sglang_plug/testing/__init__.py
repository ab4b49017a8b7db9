"""Conformance tests for plugin authors: each check raises ``AssertionError`` naming the first failing case."""

from __future__ import annotations

from .lifecycle import check_lifecycle
from .model.adapters import check_adapter_format
from .model.attention import check_attention_backend
from .model.checkpoint import check_checkpoint_reader, check_weight_loader
from .model.kernel_functions import check_kernel_functions
from .model.model import check_model
from .model.quantization import check_quantization
from .model.ranks import check_ranks
from .model.recurrence import check_recurrence
from .model.sampling import check_sampling
from .replicas.engine_client import check_engine_client
from .replicas.routing import check_routing_policy
from .server.command import check_command
from .server.observer import check_observer
from .server.route import check_route
from .serving.drafter import check_drafter
from .serving.eviction import check_eviction_policy
from .serving.kv_store import check_kv_store
from .serving.logits_processor import check_logits_processor
from .serving.prefix_cache import check_prefix_cache
from .serving.schedule import check_schedule_policy
from .serving.step_extensions.step_extension import check_step_extension
from .storage.store import check_store
from .text.grammars.grammar import check_grammar_backend
from .text.media import check_media_processor
from .text.parser import check_output_parser
from .text.tokenizer import check_tokenizer

__all__ = [
    "check_adapter_format",
    "check_attention_backend",
    "check_checkpoint_reader",
    "check_command",
    "check_drafter",
    "check_engine_client",
    "check_eviction_policy",
    "check_grammar_backend",
    "check_kernel_functions",
    "check_kv_store",
    "check_lifecycle",
    "check_logits_processor",
    "check_media_processor",
    "check_model",
    "check_observer",
    "check_output_parser",
    "check_prefix_cache",
    "check_quantization",
    "check_ranks",
    "check_recurrence",
    "check_route",
    "check_routing_policy",
    "check_sampling",
    "check_schedule_policy",
    "check_step_extension",
    "check_store",
    "check_tokenizer",
    "check_weight_loader",
]
