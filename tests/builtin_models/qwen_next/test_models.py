"""Qwen3-Next and Qwen3.5 equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PretrainedConfig, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
    "shared_expert_intermediate_size": 40,
}
TOLERANCE = 5e-4
"""Tolerance: a state's output is normalised, which amplifies rounding of small numbers."""
RECURRENT = ["linear_attention"] * 3


def next_(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Qwen3NextForCausalLM", Qwen3NextConfig(**{**SHAPE, **EXPERTS, **more})


def qwen35(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Qwen3_5ForCausalLM", Qwen3_5TextConfig(**{**SHAPE, **more})


def qwen35_moe(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Qwen3_5MoeForCausalLM", Qwen3_5MoeTextConfig(**{**SHAPE, **EXPERTS, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "qwen3-next": next_(),
    "qwen3-next, three linear attention layers, then full attention": next_(layer_types=None),
    "qwen3-next, layers without experts": next_(mlp_only_layers=[0, 3]),
    "qwen3-next, experts in every second layer": next_(decoder_sparse_step=2),
    "qwen3-next, as many key heads as value heads": next_(linear_num_value_heads=2),
    "qwen3-next, linear_conv_kernel_dim=2": next_(linear_conv_kernel_dim=2),
    "qwen3-next biased and tied": next_(attention_bias=True, tie_word_embeddings=True),
    "qwen3-next, partial_rotary_factor=0.5": next_(partial_rotary_factor=0.5),
    "qwen3.5": qwen35(),
    "qwen3.5, one full attention layer": qwen35(layer_types=[*RECURRENT, "full_attention"]),
    "qwen3.5, four value heads per key head": qwen35(linear_num_key_heads=1),
    "qwen3.5, gelu": qwen35(hidden_act="gelu"),
    "qwen3.5 tied": qwen35(tie_word_embeddings=True),
    "qwen3.5 with experts": qwen35_moe(),
    "qwen3.5 with experts, linear_key_head_dim=32": qwen35_moe(linear_key_head_dim=32),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case], tolerance=TOLERANCE)
