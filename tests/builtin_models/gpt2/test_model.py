"""GPT-2 equals transformers, in every variant of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PretrainedConfig

from sglang_plug import BuildEnv, ConfigError, Plugins, WeightError
from sglang_plug.testing import check_model
from sglang_plug_models.gpt2.model import GPT2

SHAPE: dict[str, Any] = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
CASES: dict[str, tuple[str, PretrainedConfig]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2Config(**SHAPE)),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2Config(**SHAPE, tie_word_embeddings=False)),
    "gpt2, n_inner=48, relu": (
        "GPT2LMHeadModel",
        GPT2Config(**SHAPE, n_inner=48, activation_function="relu"),
    ),
    "gpt2, scale_attn_by_inverse_layer_idx": (
        "GPT2LMHeadModel",
        GPT2Config(**SHAPE, scale_attn_by_inverse_layer_idx=True),
    ),
    "gpt2, scale_attn_weights=False": ("GPT2LMHeadModel", GPT2Config(**SHAPE, scale_attn_weights=False)),
}


@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_against_transformers(case: str, kernels: str) -> None:
    check_model(*CASES[case], kernels=kernels)


def built(**changes: Any) -> GPT2:
    config = GPT2Config(**SHAPE, **changes)
    backend = Plugins.discover().get("attention", "torch").load()(GPT2.attention_shape(config), torch.device("cpu"))
    return GPT2(config, BuildEnv(attention=backend))


def test_old_checkpoints_leave_the_prefix_out_and_carry_masks() -> None:
    model, stored = built(), GPT2LMHeadModel(GPT2Config(**SHAPE)).state_dict()
    old = {name.removeprefix("transformer."): tensor for name, tensor in stored.items() if name != "lm_head.weight"}
    model.load_weights({**old, "h.0.attn.bias": torch.ones(1, 1, 4, 4), "h.1.attn.masked_bias": torch.ones(1)}.items())
    assert torch.equal(model.transformer.h[1].attn.c_attn.weight, stored["transformer.h.1.attn.c_attn.weight"].T)
    del old["h.1.attn.c_attn.bias"]
    with pytest.raises(WeightError, match=r"unfilled, first 'transformer.h.1.attn.c_attn.bias'"):
        built().load_weights(old.items())


def test_a_square_matrix_is_transposed_once() -> None:
    linear = built().transformer.h[0].attn.c_proj
    x, weight = torch.randn(3, 32), torch.randn(32, 32)
    with torch.no_grad():
        linear.load_shard(linear.weight, weight, None)
        linear.bias.zero_()
    torch.testing.assert_close(linear(x), x @ weight)
    linear.pack_weights()
    linear.pack_weights()
    torch.testing.assert_close(linear(x), x @ weight)


def test_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="add_cross_attention is not supported"):
        built(add_cross_attention=True)
