"""JetMoE equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import JetMoeConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "kv_channels": 8,
    "num_local_experts": 5,
    "max_position_embeddings": 256,
}


def jetmoe(**more: Any) -> tuple[str, PretrainedConfig]:
    return "JetMoeForCausalLM", JetMoeConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "jetmoe": jetmoe(),
    "jetmoe, one expert, untied": jetmoe(num_experts_per_tok=1, tie_word_embeddings=False),
    "jetmoe, all experts": jetmoe(num_experts_per_tok=5),
    "jetmoe, gelu, large epsilon": jetmoe(activation_function="gelu", rms_norm_eps=0.1),
    "jetmoe, multi-query attention": jetmoe(num_key_value_heads=1, num_experts_per_tok=3),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
