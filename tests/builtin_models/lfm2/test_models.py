"""LFM2 equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Lfm2Config, Lfm2MoeConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "num_dense_layers": 1,
    "routed_scaling_factor": 1.5,
}


def dense(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Lfm2ForCausalLM", Lfm2Config(**{**SHAPE, "block_multiple_of": 16, **more})


def sparse(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Lfm2MoeForCausalLM", Lfm2MoeConfig(**{**SHAPE, **EXPERTS, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "dense": dense(),
    "full_attn_idxs": dense(layer_types=None, full_attn_idxs=[0, 2]),
    "block_auto_adjust_ff_dim=False, biased": dense(block_auto_adjust_ff_dim=False, conv_bias=True),
    "block_ffn_dim_multiplier=1.3": dense(block_ffn_dim_multiplier=1.3),
    "conv_L_cache=5, untied": dense(conv_L_cache=5, tie_word_embeddings=False),
    "attention only": dense(layer_types=["full_attention"] * 4),
    "experts": sparse(),
    "experts without bias": sparse(use_expert_bias=False),
    "experts, norm_topk_prob=False": sparse(norm_topk_prob=False),
    "experts in all layers, biased": sparse(num_dense_layers=0, conv_bias=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
