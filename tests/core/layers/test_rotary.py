"""Every kind of rotary embedding gives transformers' angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from sglang_plug import ConfigError
from sglang_plug.kernels import apply_rope
from sglang_plug.layers import Rope

PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn with everything": {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_against_transformers(name: str) -> None:
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=1024,
        rope_parameters=PARAMETERS[name],
    )
    positions = torch.tensor([0, 1, 5, 77, 400, 1023])
    expected = LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), positions[None])
    found = Rope.of(config, 16)(positions, torch.float32)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two[0], atol=1e-5, rtol=1e-5)


def test_the_older_spelling() -> None:
    class Config:
        rope_theta = 500000.0
        rope_scaling = {key: value for key, value in PARAMETERS["llama3"].items() if key != "rope_theta"}
        max_position_embeddings = 1024

    positions = torch.arange(7)
    old = Rope.of(Config(), 16)(positions, torch.float32)
    new = Rope(16, PARAMETERS["llama3"], 1024)(positions, torch.float32)
    assert all(torch.equal(one, two) for one, two in zip(old, new, strict=True))


def test_a_part_of_the_head_is_turned() -> None:
    rope = Rope(16, {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}, 64)
    x = torch.randn(3, 2, 16)
    turned = apply_rope(x, *rope(torch.arange(3), torch.float32))
    assert torch.equal(turned[..., 8:], x[..., 8:])
    assert not torch.equal(turned[1:, :, :8], x[1:, :, :8])


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="rope_type 'spiral' is not supported; known: default"):
        Rope(16, {"rope_type": "spiral"}, 64)
