"""MiniMax-Text-01 equals transformers."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from transformers import MiniMaxConfig, MiniMaxForCausalLM, PretrainedConfig

from sglang_plug.testing import check_model
from sglang_plug_models.minimax.model import COMPUTED

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "block_size": 16,
}
FACTORS: dict[str, Any] = {
    "full_attn_alpha_factor": 1.5,
    "full_attn_beta_factor": 0.7,
    "linear_attn_alpha_factor": 1.2,
    "linear_attn_beta_factor": 0.8,
    "mlp_alpha_factor": 1.1,
    "mlp_beta_factor": 0.9,
}


def minimax(**more: Any) -> tuple[str, PretrainedConfig]:
    return "MiniMaxForCausalLM", MiniMaxConfig(**{**SHAPE, **more})


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "full attention in every second layer": minimax(),
    "alpha and beta factors": minimax(**FACTORS),
    "full attention last, head_dim=None": minimax(
        head_dim=None, layer_types=["linear_attention"] * 3 + ["full_attention"]
    ),
    "sliding window, tied": minimax(sliding_window=12, tie_word_embeddings=True),
    "gelu": minimax(hidden_act="gelu"),
}


def reference(config: PretrainedConfig) -> nn.Module:
    """Return transformers' model; its decay rates, which it stores like weights, keep their values."""
    model = MiniMaxForCausalLM(config)
    for module in model.modules():
        for name in set(COMPUTED).intersection(dict(module.named_buffers(recurse=False))):
            module.register_buffer(name, getattr(module, name), persistent=False)
    return model


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    architecture, config = CASES[case]
    check_model(architecture, config, reference=reference(config))
