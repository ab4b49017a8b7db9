"""DBRX equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import DbrxConfig, PretrainedConfig

from sglang_plug import ConfigError
from sglang_plug.testing import check_model

SHAPE: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 256, "vocab_size": 96}


def dbrx(attention: dict[str, Any] | None = None, experts: dict[str, Any] | None = None, **more: Any) -> Any:
    result = DbrxConfig(
        **{**SHAPE, **more},
        attn_config={"kv_n_heads": 2, "clip_qkv": 1.0, "rope_theta": 1e4, **(attention or {})},
        ffn_config={
            "hidden_size": 32,
            "ffn_hidden_size": 24,
            "moe_num_experts": 5,
            "moe_top_k": 2,
            **(experts or {}),
        },
    )
    return "DbrxForCausalLM", result


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "dbrx": dbrx(),
    "dbrx, large clip_qkv, multi-query attention": dbrx({"clip_qkv": 50.0, "kv_n_heads": 1}),
    "dbrx, one expert, weights not normalized": dbrx(experts={"moe_top_k": 1, "moe_normalize_expert_weights": None}),
    "dbrx, L2-normalized expert weights": dbrx(experts={"moe_normalize_expert_weights": 2.0, "moe_top_k": 3}),
    "dbrx, gelu": dbrx(experts={"ffn_act_fn": {"name": "gelu"}}),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def test_more_experts_than_there_are_are_refused() -> None:
    with pytest.raises((ConfigError, AssertionError), match="moe_top_k is 9, but the model has 5 experts"):
        check_model(*dbrx(experts={"moe_top_k": 9}))
