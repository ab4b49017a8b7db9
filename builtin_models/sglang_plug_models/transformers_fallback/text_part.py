"""The decoder of a model that sees, on text: its other parts are left out."""

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
"""How names begin in a decoder's own checkpoints."""
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
"""How they begin in a checkpoint of the whole, the longer first."""


LOOKING_AHEAD = frozenset({"paligemma"})
"""Whose prompts see later tokens, which the decoder alone does not tell."""
LOGITS = {"logit_scale": 1.0, "logits_scaling": 1.0, "final_logit_softcapping": None}
"""What a decoder's own class does to its logits, and what says that it does nothing."""


def decoder_class(config: Any) -> str | None:
    """Transformers' causal class of the decoder within ``config``; ``None`` if there is none."""
    text = getattr(config, "text_config", None)
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(getattr(text, "model_type", ""))
    return names if isinstance(names, str) and names.endswith("ForCausalLM") else None


def decoder_config(config: Any) -> Any:
    """The decoder's configuration, as a checkpoint of its own would have it. Raises ``ConfigError`` without one."""
    if getattr(config, "model_type", None) in LOOKING_AHEAD:
        raise refusal(config, "its prompts look at later tokens")
    name = decoder_class(config)
    if name is None:
        raise refusal(config, "transformers has no causal class for its decoder")
    found = copy.deepcopy(config.text_config)
    found.architectures = [name]
    found.tie_word_embeddings = bool(getattr(config, "tie_word_embeddings", False)) and found.tie_word_embeddings
    whole = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(config.model_type)
    if isinstance(whole, str):  # many have a matrix as their head and nothing behind it, whatever the decoder's own has
        source = inspect.getsource(getattr(transformers, whole))
        for key, nothing in LOGITS.items():
            if hasattr(found, key) and key not in source:
                setattr(found, key, nothing)
    return found


class TransformersText(TransformersModel):
    """A model of transformers that sees, or hears, of which text is served."""

    def __init__(self, config: Any, env: BuildEnv) -> None:
        super().__init__(decoder_config(config), env)

    @classmethod
    def text_config(cls, config: Any) -> Any:
        """Of the decoder."""
        return config.text_config

    @classmethod
    def attention_shape(cls, config: Any) -> AttentionShape:
        """As the decoder alone."""
        return super().attention_shape(decoder_config(config))

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """The decoder's, by the names of the whole."""
        super().load_weights(of_decoder(weights))


def of_decoder(weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """What of the whole checkpoint is the decoder's, by the names of its own."""
    for name, tensor in weights:
        prefix = next((one for one in PREFIXES if name.startswith(one)), None)
        if prefix is not None:
            yield PREFIXES[prefix] + name.removeprefix(prefix), tensor
