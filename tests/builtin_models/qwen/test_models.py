"""Qwen2 and Qwen3 equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PretrainedConfig, Qwen2Config, Qwen3Config

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
WINDOWED: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "qwen2": ("Qwen2ForCausalLM", Qwen2Config(**SHAPE)),
    "qwen2 tied": ("Qwen2ForCausalLM", Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "qwen2 with sliding windows in later layers": ("Qwen2ForCausalLM", Qwen2Config(**SHAPE, **WINDOWED)),
    "qwen3": ("Qwen3ForCausalLM", Qwen3Config(**SHAPE, head_dim=16)),
    "qwen3 biased": ("Qwen3ForCausalLM", Qwen3Config(**SHAPE, head_dim=8, attention_bias=True)),
    "qwen3 with sliding windows": ("Qwen3ForCausalLM", Qwen3Config(**SHAPE, head_dim=8, **WINDOWED)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
