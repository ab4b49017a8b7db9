"""Every kind of rotary embedding gives the angles of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from sglang_plug import ConfigError
from sglang_plug.contracts.model.kernels import apply_rope
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
    "yarn over fewer tokens than a turn": {
        "rope_type": "yarn",
        "rope_theta": 10.0,
        "factor": 256.0,
        "original_max_position_embeddings": 2,
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
    actual = Rope.of(config, 16)(positions, torch.float32)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs[0], atol=1e-5, rtol=1e-5)


def test_the_older_spelling() -> None:
    class Config:
        rope_theta = 500000.0
        rope_scaling = {key: value for key, value in PARAMETERS["llama3"].items() if key != "rope_theta"}
        max_position_embeddings = 1024

    positions = torch.arange(7)
    old = Rope.of(Config(), 16)(positions, torch.float32)
    new = Rope(16, PARAMETERS["llama3"], 1024)(positions, torch.float32)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(old, new, strict=True))


def test_a_part_of_the_head_is_turned() -> None:
    rope = Rope(16, {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}, 64)
    x = torch.randn(3, 2, 16)
    rotated = apply_rope(x, *rope(torch.arange(3), torch.float32))
    assert torch.equal(rotated[..., 8:], x[..., 8:])
    assert not torch.equal(rotated[1:, :, :8], x[1:, :, :8])


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="rope_type 'spiral' is not supported; known: default"):
        Rope(16, {"rope_type": "spiral"}, 64)


LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.05, 1.2, 1.5, 1.9, 2.4],
    "long_factor": [1.5, 2.0, 4.0, 8.0, 16.0, 31.0],
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("more", [{}, {"factor": 8.0}, {"attention_factor": 1.25}], ids=["stated", "factor", "given"])
@pytest.mark.parametrize(("last", "served"), [(63, 64), (64, 512), (511, None)])
def test_longrope_within_and_beyond_the_original_length(more: dict[str, Any], last: int, served: int | None) -> None:
    """Transformers switches by the longest position of a batch, this engine by the longest context that is served."""
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        rope_parameters={**LONGROPE, **more},
    )
    positions = torch.tensor([0, 1, 5, 40, last])
    expected = Phi3RotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), positions[None])
    actual = Rope.of(config, 16, served)(positions, torch.float32)
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs[0], atol=1e-5, rtol=1e-5)


def test_longrope_needs_a_factor_for_each_frequency() -> None:
    with pytest.raises(ConfigError, match="longrope needs 8 factors for 16 rotated dimensions, got 6"):
        Rope(16, {**LONGROPE, "partial_rotary_factor": 1.0}, 64)
