"""Granite 4 equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GraniteMoeHybridConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "mamba_n_heads": 4,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "num_local_experts": 0,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
}
EXPERTS: dict[str, Any] = {"num_local_experts": 6, "num_experts_per_tok": 2}
ATTENTION: dict[str, Any] = {"layer_types": ["attention"] * 4}


def granite(**more: Any) -> tuple[str, PretrainedConfig]:
    return "GraniteMoeHybridForCausalLM", GraniteMoeHybridConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "hybrid": granite(),
    "hybrid with experts": granite(**EXPERTS),
    "mamba_n_groups=2": granite(mamba_n_groups=2),
    "attention last": granite(layer_types=["mamba"] * 3 + ["attention"]),
    "attention with RoPE": granite(position_embedding_type="rope"),
    "attention only": granite(**ATTENTION, position_embedding_type="rope"),
    "attention and experts only": granite(**ATTENTION, **EXPERTS, position_embedding_type="rope"),
    "no attention": granite(layer_types=["mamba"] * 4, use_cache=False),
    "biased": granite(mamba_proj_bias=True, attention_bias=True),
    "mamba_d_conv=2, no convolution bias": granite(mamba_d_conv=2, mamba_conv_bias=False),
    "time_step_limit": granite(time_step_limit=(0.3, 0.8)),
    "tied": granite(tie_word_embeddings=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
