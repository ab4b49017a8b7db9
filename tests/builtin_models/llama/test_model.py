"""Llama equals transformers, in every variant of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig

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
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {"tie_word_embeddings": False},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "head_dim larger than hidden_size / heads": {"head_dim": 24},
    "multi-head attention": {"num_key_value_heads": 4},
    "partial_rotary_factor, which Llama ignores": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    },
    "linear RoPE scaling": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    name: ("LlamaForCausalLM", LlamaConfig(**{**SHAPE, **changes})) for name, changes in VARIANTS.items()
}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_against_transformers(case: str, kernels: str) -> None:
    check_model(*CASES[case], kernels=kernels)
