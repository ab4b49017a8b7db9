"""Granite equals transformers, alone and in a vision-language model."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GraniteConfig, LlavaNextConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAVA_NEXT = LlavaNextConfig(
    text_config={**SHAPE, "model_type": "granite"},
    vision_config={**VISION, "model_type": "clip_vision_model", "image_size": 16, "patch_size": 4},
    image_token_index=90,
)
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "granite": ("GraniteForCausalLM", GraniteConfig(**SHAPE)),
    "granite biased, tied": (
        "GraniteForCausalLM",
        GraniteConfig(**SHAPE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    ),
    "llava-next with granite, text": ("LlavaNextForConditionalGeneration", LLAVA_NEXT),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
