"""Transformers' own model: finding its class, building it, and replacing its attention."""

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
"""Our name among transformers' attention implementations. It has none among their masks, so none are built."""
HANDLER = "sglang_plug_attention"
"""The attribute of an attention module that does its work."""
ATTENDING = frozenset({"full_attention", "sliding_attention"})
"""Layer types that keep keys and values only."""
SINKS = "s_aux"
"""The argument of an attention call with a logit for each head, which takes part in the softmax and has no value."""


def attend(module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **options: Any) -> tuple[Tensor, None]:
    """What transformers calls in each layer: ``[1, heads, T, dim]`` to ``[1, T, heads, value_dim]``."""
    return getattr(module, HANDLER)(q, k, v, attention_mask, options), None


def register() -> None:
    """Make ``attend`` known to transformers, under ``INTERFACE``."""
    AttentionInterface.register(INTERFACE, attend)


def refusal(config: Any, reason: str) -> ConfigError:
    """The error for a model that cannot be served, in one line."""
    names = getattr(config, "architectures", None) or [type(config).__name__]
    return ConfigError(f"{names[0]} cannot be served through transformers: {reason}")


def model_class(config: Any) -> type[PreTrainedModel]:
    """Transformers' class of the checkpoint's architecture. Raises ``ConfigError`` if it is not a causal model's."""
    kind = named_class(config)
    if not any(kind.__name__ in _names(names) for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise refusal(config, "it is not a causal language model")
    if getattr(kind, "_is_stateful", False) and not attends_only(config):
        raise refusal(config, "it keeps a state besides keys and values")
    return kind


def attends_only(config: Any) -> bool:
    """True if the configuration of a class whose layers may keep states says that none of them does."""
    kinds: Any = getattr(config, "layer_types", None) or ("unknown",)
    return set(kinds) <= ATTENDING


def body_reader(config: Any) -> str | None:
    """The component for a checkpoint without a head: tokens of an encoder see each other, those of a decoder what is
    before them. ``None`` if transformers has no class for it."""
    if not hasattr(transformers, str(config.architectures[0])):
        return None
    kind, looks_ahead = config.model_type, getattr(config, "use_bidirectional_attention", False)
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return DECODER if decodes and not looks_ahead else ENCODER


def named_class(config: Any) -> type[PreTrainedModel]:
    """Transformers' class of the checkpoint's architecture. Raises ``ConfigError`` if there is none for ``config``."""
    name = str((getattr(config, "architectures", None) or [""])[0])
    found = getattr(transformers, name, None)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel)):
        raise refusal(config, f"transformers {transformers.__version__} has no class of that name")
    kind: type[PreTrainedModel] = found
    wanted: Any = kind.config_class
    if not isinstance(config, wanted):
        raise refusal(config, f"its config.json is a {type(config).__name__}, and the class needs a {wanted.__name__}")
    return kind


def _names(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def own_config(config: Any, implementation: str) -> Any:
    """A copy that selects an attention implementation."""
    copied = copy.deepcopy(config)
    copied._attn_implementation = implementation
    return copied


def rope_types(config: Any) -> Iterator[dict[str, Any]]:
    """Parameters of every kind of rotary embedding in a configuration."""
    found = getattr(config, "rope_parameters", None)
    if isinstance(found, dict):
        nested = [one for one in found.values() if isinstance(one, dict)]
        yield from nested or [found]


def skeleton(kind: type[PreTrainedModel], config: Any, attention: str = INTERFACE) -> PreTrainedModel:
    """The model without memory for its weights, with our attention."""
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
    """The model with its weights and transformers' own attention, loaded as transformers loads them.

    ``optional`` are beginnings of names of parts that may be left over, or be missing and then stay random.

    Raises ``WeightError`` if the checkpoint lacks a tensor, or has one that the model has no place for.
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
    found: PreTrainedModel = model.to(device).eval()
    return found
