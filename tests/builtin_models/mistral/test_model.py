"""Mistral equals transformers, with and without its window."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import MistralConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "without a window": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=None)),
    "with a window": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=5)),
    "with a window that nothing fills": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=4096)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
