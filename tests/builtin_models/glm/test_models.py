"""Every generation of GLM-4 equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Glm4Config, Glm4MoeConfig, Glm4MoeForCausalLM, GlmConfig, PretrainedConfig

from sglang_plug import BuildEnv
from sglang_plug.testing import check_model
from sglang_plug_backends.torch_native.attention import TorchAttention
from sglang_plug_models.glm.moe import Glm4Moe

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
EXPERTS: dict[str, Any] = {"moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 3}


def glm(**more: Any) -> tuple[str, PretrainedConfig]:
    return "GlmForCausalLM", GlmConfig(**{**SHAPE, "head_dim": 16, **more})


def glm4(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Glm4ForCausalLM", Glm4Config(**{**SHAPE, "head_dim": 16, **more})


def moe(**more: Any) -> tuple[str, PretrainedConfig]:
    return "Glm4MoeForCausalLM", Glm4MoeConfig(**{**SHAPE, **EXPERTS, "head_dim": 16, **more})


def partial_rotary(share: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}}


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "glm": glm(),
    "glm, biased, tied": glm(attention_bias=True, tie_word_embeddings=True),
    "glm, partial_rotary_factor=1": glm(**partial_rotary(1.0)),
    "glm-4-0414": glm4(),
    "glm-4-0414, biased, multi-head attention": glm4(attention_bias=True, num_key_value_heads=4),
    "glm-4-0414, partial_rotary_factor=0.25": glm4(**partial_rotary(0.25)),
    "glm-4.5": moe(attention_bias=True),
    "glm-4.5, use_qk_norm, routed_scaling_factor=2.5": moe(
        use_qk_norm=True, attention_bias=True, routed_scaling_factor=2.5
    ),
    "glm-4.5, expert groups, norm_topk_prob=False": moe(n_group=4, topk_group=2, norm_topk_prob=False),
    "glm-4.5, two shared experts, no dense layer": moe(n_shared_experts=2, first_k_dense_replace=0),
    "glm-4.5, all layers dense, tied": moe(first_k_dense_replace=3, tie_word_embeddings=True),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    _, config = moe(num_nextn_predict_layers=1)
    ours = Glm4Moe(
        config, BuildEnv(attention=TorchAttention(Glm4Moe.attention_shape(config), torch.device("cpu"), None))
    )
    weights = {
        name: tensor for name, tensor in Glm4MoeForCausalLM(config).state_dict().items() if ".layers.3." not in name
    }
    ours.load_weights([*weights.items(), ("model.layers.3.eh_proj.weight", torch.zeros(1))])
