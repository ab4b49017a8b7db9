"""Nemotron-H and Nemotron 3 equal transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import NemotronHConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "mamba_num_heads": 4,
    "mamba_head_dim": 12,
    "ssm_state_size": 8,
    "n_groups": 2,
    "hybrid_override_pattern": "M-M*-M-",
}
EXPERTS: dict[str, Any] = {
    "hybrid_override_pattern": "MEM*E",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 28,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
}


def nemotron(**more: Any) -> tuple[str, PretrainedConfig]:
    return "NemotronHForCausalLM", NemotronHConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "dense": nemotron(),
    "attention first": nemotron(hybrid_override_pattern="*-M-*-"),
    "n_groups=1, biased": nemotron(n_groups=1, use_bias=True, mlp_bias=True),
    "no convolution bias": nemotron(use_conv_bias=False),
    "time_step_min=0.9": nemotron(time_step_min=0.9),
    "gelu, tied": nemotron(mlp_hidden_act="gelu", tie_word_embeddings=True),
    "experts": nemotron(**EXPERTS),
    "experts, norm_topk_prob=False": nemotron(**EXPERTS, norm_topk_prob=False),
    "experts, moe_latent_size=20": nemotron(**EXPERTS, moe_latent_size=20),
    "experts, n_group=1": nemotron(**{**EXPERTS, "n_group": 1, "topk_group": 1}),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
