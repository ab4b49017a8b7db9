"""gpt-oss equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import GptOssConfig, PretrainedConfig

from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 6,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def gpt_oss(**more: Any) -> tuple[str, PretrainedConfig]:
    return "GptOssForCausalLM", GptOssConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "gpt-oss": gpt_oss(),
    "gpt-oss, full attention in all layers": gpt_oss(layer_types=["full_attention"] * 4),
    "gpt-oss, one expert, tied": gpt_oss(num_experts_per_tok=1, tie_word_embeddings=True),
    "gpt-oss, swiglu_limit=0.4, five experts": gpt_oss(swiglu_limit=0.4, swiglu_alpha=1.0, num_experts_per_tok=5),
    "gpt-oss, attention_bias=False, multi-query attention": gpt_oss(attention_bias=False, num_key_value_heads=1),
    "gpt-oss, no RoPE scaling": gpt_oss(rope_parameters={"rope_type": "default", "rope_theta": 150000.0}),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])
