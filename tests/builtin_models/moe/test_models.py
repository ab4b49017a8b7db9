"""Mixtures of experts equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import MixtralConfig, PretrainedConfig, Qwen2MoeConfig, Qwen3MoeConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
EXPERTS: dict[str, Any] = {"num_experts": 6, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
QWEN2: dict[str, Any] = {**SHAPE, **EXPERTS, "shared_expert_intermediate_size": 40}
QWEN3: dict[str, Any] = {**SHAPE, **EXPERTS, "head_dim": 16}
MIXTRAL: dict[str, Any] = {**SHAPE, "num_local_experts": 5, "num_experts_per_tok": 2}
WINDOW: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 6}


def qwen2(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Qwen2MoeForCausalLM", Qwen2MoeConfig(**{**QWEN2, **more})


def qwen3(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Qwen3MoeForCausalLM", Qwen3MoeConfig(**{**QWEN3, **more})


def mixtral(**more: Any) -> tuple[str, PretrainedConfig]:
    return "MixtralForCausalLM", MixtralConfig(**{**MIXTRAL, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "qwen2": qwen2(),
    "qwen2, norm_topk_prob": qwen2(norm_topk_prob=True),
    "qwen2, four of 60 experts": qwen2(num_experts=60, num_experts_per_tok=4),
    "qwen2, experts in every second layer": qwen2(decoder_sparse_step=2),
    "qwen2, layers without experts": qwen2(mlp_only_layers=[0, 2]),
    "qwen2, qkv_bias=False": qwen2(qkv_bias=False),
    "qwen2 with sliding windows": qwen2(**WINDOW, max_window_layers=3),
    "qwen2 without any expert": qwen2(num_experts=0, num_experts_per_tok=1),
    "qwen3": qwen3(),
    "qwen3, one expert": qwen3(num_experts_per_tok=1),
    "qwen3, one expert, norm_topk_prob": qwen3(num_experts_per_tok=1, norm_topk_prob=True),
    "qwen3, three experts, norm_topk_prob": qwen3(num_experts_per_tok=3, norm_topk_prob=True),
    "qwen3, all experts": qwen3(num_experts_per_tok=6, norm_topk_prob=True),
    "qwen3, experts in every second layer but the last": qwen3(decoder_sparse_step=2, mlp_only_layers=[3]),
    "qwen3 biased and tied": qwen3(attention_bias=True, tie_word_embeddings=True),
    "qwen3 with sliding windows": qwen3(**WINDOW),
    "qwen3, relu": qwen3(hidden_act="relu"),
    "mixtral": mixtral(),
    "mixtral, one expert": mixtral(num_experts_per_tok=1),
    "mixtral, four experts": mixtral(num_experts_per_tok=4),
    "mixtral with a sliding window": mixtral(sliding_window=6),
    "mixtral, gelu_new": mixtral(hidden_act="gelu_new"),
    "mixtral tied": mixtral(tie_word_embeddings=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
