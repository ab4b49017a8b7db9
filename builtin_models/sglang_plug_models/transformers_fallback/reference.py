"""Transformers' own model: find its class, build it, and replace its attention."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from sglang_plug import ConfigError, WeightError

ENCODER, DECODER = "transformers-encoder", "transformers-decoder"
"""Components for checkpoints without a head."""
INTERFACE = "sglang_plug"
"""Our name among transformers' attention implementations. No mask has this name, so none are built."""
HANDLER = "sglang_plug_attention"
"""Attribute of an attention module with its replacement."""
ATTENDING = frozenset({"full_attention", "sliding_attention"})
"""Types of layers that cache only keys and values."""
SINKS = "s_aux"
"""Argument of an attention call with a logit for each head, which takes part in the softmax and has no value."""


def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **options: Any) -> tuple[Tensor, None]:
    """Attend instead of transformers' function: ``[1, heads, T, dim]`` to ``[1, T, heads, value_dim]``."""
    return getattr(module, HANDLER)(q, k, v, attention_mask, options), None


def register() -> None:
    """Register ``attend`` with transformers under ``INTERFACE``."""
    AttentionInterface.register(INTERFACE, attend)


def refusal(config: Any, reason: str) -> ConfigError:
    """Build the error for a model that cannot be served, in one line."""
    names = getattr(config, "architectures", None) or [type(config).__name__]
    return ConfigError(f"{names[0]} cannot be served through transformers: {reason}")


def model_class(config: Any) -> type[PreTrainedModel]:
    """Return transformers' class of the architecture. Raises ``ConfigError`` if it is not a causal model."""
    kind = named_class(config)
    if not any(kind.__name__ in _names(names) for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise refusal(config, "it is not a causal language model")
    if getattr(kind, "_is_stateful", False) and not attends_only(config):
        raise refusal(config, "it keeps a state besides keys and values")
    return kind


def attends_only(config: Any) -> bool:
    """Return True if the configuration of a class with optional recurrent layers has none of them."""
    kinds: Any = getattr(config, "layer_types", None) or ("unknown",)
    return set(kinds) <= ATTENDING


def body_reader(config: Any) -> str | None:
    """Return the component for a checkpoint without a head; ``None`` if transformers has no class for it.

    Encoders attend bidirectionally, decoders causally.
    """
    if not hasattr(transformers, str(config.architectures[0])):
        return None
    kind, looks_ahead = config.model_type, getattr(config, "use_bidirectional_attention", False)
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return DECODER if decodes and not looks_ahead else ENCODER


def named_class(config: Any) -> type[PreTrainedModel]:
    """Return transformers' class of the architecture. Raises ``ConfigError`` if there is none for ``config``."""
    name = str((getattr(config, "architectures", None) or [""])[0])
    result = getattr(transformers, name, None)
    if not (isinstance(result, type) and issubclass(result, PreTrainedModel)):
        raise refusal(config, f"transformers {transformers.__version__} has no class of that name")
    kind: type[PreTrainedModel] = result
    config_type: Any = kind.config_class
    if not isinstance(config, config_type):
        raise refusal(
            config, f"its config.json is a {type(config).__name__}, and the class needs a {config_type.__name__}"
        )
    return kind


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def own_config(config: Any, implementation: str) -> Any:
    """Return a copy that selects an attention implementation."""
    copied = copy.deepcopy(config)
    copied._attn_implementation = implementation
    return copied


def rope_types(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the parameters of every kind of rotary embedding in a configuration."""
    result = getattr(config, "rope_parameters", None)
    if isinstance(result, dict):
        nested = [value for value in result.values() if isinstance(value, dict)]
        yield from nested or [result]


def skeleton(kind: type[PreTrainedModel], config: Any, attention: str = INTERFACE) -> PreTrainedModel:
    """Build the model with our attention and without memory for its weights."""
    register()
    with torch.device("meta"):
        return kind(own_config(config, attention)).eval()


def filled(
    kind: type[PreTrainedModel],
    config: Any,
    weights: Iterable[tuple[str, Tensor]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    attention: str = "eager",
    optional: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Build the model with its weights and transformers' own attention, loaded by transformers.

    ``optional`` are name prefixes of parts that may be unused, or missing and then stay random.

    Raises ``WeightError`` if the checkpoint lacks a tensor, or has one that the model does not have.
    """
    progress = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        model, report = kind.from_pretrained(
            None,
            config=own_config(config, attention),
            attn_implementation=attention,
            state_dict=dict(weights),
            dtype=dtype,
            output_loading_info=True,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise WeightError(f"checkpoint does not fit {kind.__name__}: {error}") from error
    finally:
        if progress:
            transformers.utils.logging.enable_progress_bar()
    if strange := [name for name in report["unexpected_keys"] if not name.startswith(optional)]:
        raise WeightError(f"checkpoint has {min(strange)!r} but {type(model).__name__} has no such parameter")
    if missing := [name for name in report["missing_keys"] if not name.startswith(optional)]:
        raise WeightError(f"checkpoint leaves {len(missing)} parameters unfilled, first {min(missing)!r}")
    result: PreTrainedModel = model.to(device).eval()
    return result
