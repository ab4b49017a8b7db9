"""The decoder of a vision-language model, served on text only."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import transformers
from torch import Tensor
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from sglang_plug import AttentionShape, BuildEnv

from .model import TransformersModel
from .reference import refusal

BODY, HEAD = "model.", "lm_head."
"""Name prefixes in a decoder's own checkpoints."""
PREFIXES = {
    "model.language_model.lm_head.": HEAD,
    "model.language_model.model.": BODY,
    "model.language_model.": BODY,
    "model.text_model.": BODY,
    "language_model.lm_head.": HEAD,
    "language_model.model.": BODY,
    "text_model.lm_head.": HEAD,
    "text_model.model.": BODY,
    HEAD: HEAD,
}
"""Name prefixes in a checkpoint of the whole model, longer first."""


LOOKING_AHEAD = frozenset({"paligemma"})
"""Models whose prompts attend to later tokens, which the decoder alone does not show."""
LOGITS = {"logit_scale": 1.0, "logits_scaling": 1.0, "final_logit_softcapping": None}
"""Logit transformations of a decoder's own class, and the values that disable them."""


def decoder_class(config: Any) -> str | None:
    """Return transformers' causal class of the decoder within ``config``; ``None`` if there is none."""
    text = getattr(config, "text_config", None)
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(getattr(text, "model_type", ""))
    return names if isinstance(names, str) and names.endswith("ForCausalLM") else None


def decoder_config(config: Any) -> Any:
    """Return the decoder's configuration for a separate checkpoint. Raises ``ConfigError`` without one."""
    if getattr(config, "model_type", None) in LOOKING_AHEAD:
        raise refusal(config, "its prompts look at later tokens")
    name = decoder_class(config)
    if name is None:
        raise refusal(config, "transformers has no causal class for its decoder")
    result = copy.deepcopy(config.text_config)
    result.architectures = [name]
    result.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False)) and result.tie_word_embeddings
    whole = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    if isinstance(whole, str):  # many have a plain matrix as their head, unlike the decoder's own class
        source = inspect.getsource(getattr(transformers, whole))
        for key, nothing in LOGITS.items():
            if hasattr(result, key) and key not in source:
                setattr(result, key, nothing)
    return result


class TransformersText(TransformersModel):
    """The decoder of a multimodal model of transformers, served on text only."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(decoder_config(config), env)

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Return the decoder's configuration."""
        return config.text_config

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """Return the geometry of the decoder alone."""
        return super().attention_shape(decoder_config(config))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load the decoder's weights by their names in the whole model."""
        super().load_weights(of_decoder(weights))


def of_decoder(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the decoder's tensors of the whole checkpoint under the decoder's own names."""
    for name, tensor in weights:
        prefix = next((known for known in PREFIXES if name.startswith(known)), None)
        if prefix is not None:
            yield PREFIXES[prefix] + name.removeprefix(prefix), tensor
