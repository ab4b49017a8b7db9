"""Gemma 2 and Gemma 3 equal transformers, in every variant of their configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3TextConfig, PretrainedConfig

from sglang_plug import BuildEnv, ConfigError, Plugins
from sglang_plug.layers import RMSNorm
from sglang_plug.testing import check_model
from sglang_plug_models.gemma.model import Body, Gemma2

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "query_pre_attn_scalar": 24,
    "sliding_window": 7,
}
SCALED: dict[str, Any] = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "gemma2": ("Gemma2ForCausalLM", Gemma2Config(**SHAPE)),
    "gemma2 with low logit soft caps": (
        "Gemma2ForCausalLM",
        Gemma2Config(**SHAPE, attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
    ),
    "gemma2 without logit soft caps": (
        "Gemma2ForCausalLM",
        Gemma2Config(**SHAPE, attn_logit_softcapping=None, final_logit_softcapping=None),
    ),
    "gemma2 biased, untied": (
        "Gemma2ForCausalLM",
        Gemma2Config(**SHAPE, attention_bias=True, tie_word_embeddings=False),
    ),
    "gemma2, full attention in all layers": (
        "Gemma2ForCausalLM",
        Gemma2Config(**SHAPE, layer_types=["full_attention"] * 3),
    ),
    "gemma3": ("Gemma3ForCausalLM", Gemma3TextConfig(**{**SHAPE, "num_hidden_layers": 7})),
    "gemma3, full attention in every second layer": (
        "Gemma3ForCausalLM",
        Gemma3TextConfig(**SHAPE, sliding_window_pattern=2),
    ),
    "gemma3, RoPE scaling": (
        "Gemma3ForCausalLM",
        Gemma3TextConfig(**SHAPE, sliding_window_pattern=2, rope_parameters=SCALED),
    ),
    "gemma3, final_logit_softcapping": ("Gemma3ForCausalLM", Gemma3TextConfig(**SHAPE, final_logit_softcapping=2.0)),
}


@pytest.mark.parametrize("case", sorted(CASES))
def test_against_transformers(case: str) -> None:
    check_model(*CASES[case])


def env(config: PretrainedConfig) -> BuildEnv:
    backend = Plugins.discover().get("attention", "torch").load()
    return BuildEnv(attention=backend(Gemma2.attention_shape(config), torch.device("cpu")))


def test_norms_and_embeddings_round_as_transformers_does() -> None:
    config = Gemma2Config(**SHAPE)
    theirs = Gemma2ForCausalLM(config).bfloat16().model
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        body = Body(config, env(config), [])
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        theirs.norm.weight.copy_(torch.randn(32))
        for mine, other in ((body.embed_tokens, theirs.embed_tokens), (body.norm, theirs.norm)):
            mine.weight.copy_(other.weight)
        tokens, x = torch.arange(96), torch.randn(50, 32, dtype=torch.bfloat16)
        assert torch.equal(body.embed(tokens), theirs.embed_tokens(tokens))
        expected = theirs.norm(x)
        assert torch.equal(body.norm(x), expected)
        body.norm.pack_weights()
        assert torch.equal(body.norm(x), expected)
        normed, total = body.norm.add(x.clone(), x.clone())
        assert torch.equal(total, x + x) and torch.equal(normed, theirs.norm(x + x))
    assert isinstance(body.norm, RMSNorm)


def test_a_model_that_looks_ahead_is_refused() -> None:
    config = Gemma3TextConfig(**SHAPE, use_bidirectional_attention=True)
    with pytest.raises(ConfigError, match="use_bidirectional_attention is not supported"):
        Gemma2(config, env(config))
