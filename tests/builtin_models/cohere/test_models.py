"""Command R and related models equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Cohere2Config, CohereConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "logit_scale": 0.25,
}


def cohere(**more: Any) -> tuple[str, PretrainedConfig]:
    return "CohereForCausalLM", CohereConfig(**{**SHAPE, **more})


def cohere2(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Cohere2ForCausalLM", Cohere2Config(**{**SHAPE, "head_dim": 16, "sliding_window": 6, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "command r": cohere(),
    "command r+, untied": cohere(use_qk_norm=True, tie_word_embeddings=False),
    "command r, biased, multi-head attention": cohere(attention_bias=True, num_key_value_heads=4, layer_norm_eps=0.01),
    "command r7b": cohere2(),
    "command r7b, biased, sliding windows in all layers": cohere2(
        attention_bias=True, layer_types=["sliding_attention"] * 4, num_key_value_heads=1
    ),
    "command r7b, full attention in all layers": cohere2(layer_types=["full_attention"] * 4),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
