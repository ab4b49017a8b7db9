from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang_plug_gpt_neox import register_models
from sglang_plug_gpt_neox.model import GPTNeoX
from transformers import GPTNeoXConfig

from sglang_plug import Attention, AttentionBackend, BuildEnv, ConfigError, ForwardBatch, WeightError
from sglang_plug.testing import check_model


def tiny(**changes: Any) -> GPTNeoXConfig:
    return GPTNeoXConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        **{"rotary_pct": 0.5, **changes},
    )


class Nowhere(AttentionBackend):
    """Attention backend for building a model, which cannot compute."""

    def plan(self, batch: ForwardBatch) -> None:
        raise AssertionError("not meant to run")

    def run(self, layer: Attention, q: Any, k: Any, v: Any, batch: ForwardBatch) -> torch.Tensor:
        raise AssertionError("not meant to run")


def built(config: GPTNeoXConfig) -> GPTNeoX:
    return GPTNeoX(config, BuildEnv(attention=Nowhere(GPTNeoX.attention_shape(config), torch.device("cpu"))))


VARIANTS: dict[str, dict[str, Any]] = {
    "pythia": {},
    "pythia, a quarter rotated": {"rotary_pct": 0.25, "rotary_emb_base": 5000},
    "attention before MLP": {"use_parallel_residual": False},
    "all of a head rotated": {"rotary_pct": 1.0},
    "gpt-neox-20b": {"hidden_act": "gelu_fast"},
    "relu": {"hidden_act": "relu"},
    "tied": {"tie_word_embeddings": True},
    "attention without biases": {"attention_bias": False},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=list(VARIANTS))
def test_logits_are_those_of_transformers(changes: dict[str, Any]) -> None:
    check_model("GPTNeoXForCausalLM", tiny(**changes), model_class=GPTNeoX)


def test_an_activation_it_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_act 'xielu' is unknown; known: gelu, "):
        built(tiny(hidden_act="xielu"))


def stored(model: GPTNeoX) -> dict[str, torch.Tensor]:
    return {name: torch.randn_like(parameter) for name, parameter in model.named_parameters()}


def test_checkpoint_names_are_ours_and_old_buffers_are_passed_over() -> None:
    model = built(tiny())
    weights = stored(model)
    old = {"gpt_neox.layers.0.attention.bias": torch.ones(1), "gpt_neox.layers.1.attention.masked_bias": torch.ones(1)}
    model.load_weights({**weights, **old}.items())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, weights[name]), name


def test_a_missing_bias_is_noticed() -> None:
    model = built(tiny())
    weights = stored(model)
    del weights["gpt_neox.layers.1.mlp.dense_h_to_4h.bias"]
    with pytest.raises(WeightError, match="unfilled, first 'gpt_neox.layers.1.mlp.dense_h_to_4h.bias'"):
        model.load_weights(weights.items())


def test_it_declares_the_architecture() -> None:
    (spec,) = register_models()
    assert (spec.kind, spec.name) == ("model", "GPTNeoXForCausalLM")
