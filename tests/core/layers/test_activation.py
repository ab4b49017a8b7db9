from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers.activations import ACT2FN

from sglang_plug import Attention, AttentionBackend, AttentionShape, BuildEnv, ConfigError, ForwardBatch
from sglang_plug.contracts.model.kernels import TORCH
from sglang_plug.layers import activation, gated_activation
from sglang_plug.layers.activation import ACTIVATIONS


class Nowhere(AttentionBackend):
    """An attention backend with which layers can be built but not run."""

    def plan(self, batch: ForwardBatch) -> None:
        raise AssertionError("not meant to run")

    def run(self, layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch) -> Tensor:
        raise AssertionError("not meant to run")


ENV = BuildEnv(attention=Nowhere(AttentionShape(heads=1, kv_heads=1, dim=2, layers=1), torch.device("cpu")))


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_a_name_means_what_it_means_to_transformers(name: str) -> None:
    x = torch.linspace(-6, 6, 200)
    torch.testing.assert_close(activation(name)(x), ACT2FN[name](x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_pytorch_tanh", "relu"])
def test_the_first_half_is_the_gate(name: str) -> None:
    gate, up = torch.randn(5, 8), torch.randn(5, 8)
    actual = gated_activation(name, ENV)(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(actual, ACT2FN[name](gate) * up)


def test_the_kernel_sets_own_function_is_used() -> None:
    own = replace(ENV, kernels=replace(TORCH, silu_mul=lambda x: x * 0))
    assert gated_activation("swish", own)(torch.ones(2, 4)).eq(0).all()
    assert gated_activation("gelu", own)(torch.ones(2, 4)).ne(0).all()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="activation 'xielu' is not supported; known: gelu, gelu_fast"):
        gated_activation("xielu", ENV)
