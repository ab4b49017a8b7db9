"""Mistral equals transformers, with and without its window."""

from __future__ import annotations

import pytest
from transformers import MistralConfig

from sglang_plug.testing import check_model


@pytest.mark.parametrize("window", [None, 5, 4096])
def test_against_transformers(window: int | None) -> None:
    config = MistralConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        sliding_window=window,
    )
    check_model("MistralForCausalLM", config)
