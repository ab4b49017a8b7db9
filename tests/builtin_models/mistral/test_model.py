"""Mistral and Ministral 3 equal transformers, with and without a window."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Ministral3Config, MistralConfig, PretrainedConfig

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
STRETCHED: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "without a sliding window": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=None)),
    "with a sliding window": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=5)),
    "sliding window longer than the context": ("MistralForCausalLM", MistralConfig(**SHAPE, sliding_window=4096)),
    "ministral 3": ("Ministral3ForCausalLM", Ministral3Config(**SHAPE, head_dim=16, rope_parameters=STRETCHED)),
    "ministral 3, tied, with a sliding window": (
        "Ministral3ForCausalLM",
        Ministral3Config(**SHAPE, head_dim=16, rope_parameters=STRETCHED, sliding_window=5, tie_word_embeddings=True),
    ),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
