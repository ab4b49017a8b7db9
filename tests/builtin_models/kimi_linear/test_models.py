"""Kimi Linear equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import KimiLinearConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "max_position_embeddings": 256,
    "num_experts": 8,
    "num_experts_per_token": 3,
    "linear_head_dim": 12,
    "linear_num_heads": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    "pad_token_id": 0,
}


def kimi(**more: Any) -> tuple[str, PretrainedConfig]:
    return "KimiLinearForCausalLM", KimiLinearConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "as published": kimi(),
    "full attention in every second layer, expert groups": kimi(
        layer_types=["linear_attention", "full_attention"] * 2, num_expert_group=4, topk_group=2
    ),
    "q_lora_rank, two dense layers": kimi(q_lora_rank=16, first_k_dense_replace=2),
    "two shared experts, moe_renormalize=False, tied": kimi(
        num_shared_experts=2, moe_renormalize=False, tie_word_embeddings=True
    ),
    "linear_conv_kernel_dim=2": kimi(linear_conv_kernel_dim=2),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
