"""Phi-3 equals transformers, in every variant of its configuration."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from transformers import Phi3Config, PretrainedConfig

from sglang_plug import BuildEnv, Plugins
from sglang_plug.testing import check_model
from sglang_plug_models.phi.model import Phi3

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
SHORT, LONG = [1.0, 1.1, 1.3, 1.6, 2.0, 2.5], [2.0, 3.0, 5.0, 8.0, 13.0, 21.0]


def longrope(short: list[float], long: list[float], original: int, **more: Any) -> Phi3Config:
    """RoPE applies to three quarters of each head, as in Phi-4-mini."""
    scaling = {"type": "longrope", "short_factor": short, "long_factor": long, **more}
    return Phi3Config(
        **SHAPE, rope_scaling=scaling, partial_rotary_factor=0.75, original_max_position_embeddings=original
    )


CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "phi3": ("Phi3ForCausalLM", Phi3Config(**SHAPE)),
    "phi3 tied, with a sliding window": (
        "Phi3ForCausalLM",
        Phi3Config(**SHAPE, tie_word_embeddings=True, sliding_window=6),
    ),
    "phi4-mini, partial_rotary_factor=0.75": ("Phi3ForCausalLM", Phi3Config(**SHAPE, partial_rotary_factor=0.75)),
    "longrope within the original length": ("Phi3ForCausalLM", longrope(SHORT, LONG, 256)),
    # transformers chooses the factors by each prompt's length, unless both lists are equal
    "longrope beyond the original length": ("Phi3ForCausalLM", longrope(LONG, LONG, 64)),
    "longrope, attention_factor=1.4": ("Phi3ForCausalLM", longrope(LONG, LONG, 64, attention_factor=1.4)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


@pytest.mark.parametrize(("served", "divisors"), [(None, LONG), (65, LONG), (64, SHORT), (10, SHORT)])
def test_the_served_length_decides_for_every_sequence(
    served: int | None, divisors: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    config = longrope(SHORT, LONG, 64)
    backend = Plugins.discover().get("attention", "torch").load()(Phi3.attention_shape(config), torch.device("cpu"))
    with caplog.at_level(logging.INFO):
        model = Phi3(config, BuildEnv(attention=backend, context_length=served))
    plain = 1.0 / 10000.0 ** (torch.arange(0, 12, 2) / 12)
    torch.testing.assert_close(model.model.rope.inverse, plain / torch.tensor(divisors))
    assert ("--context-length 64 selects those for short ones" in caplog.text) == (divisors is LONG)
