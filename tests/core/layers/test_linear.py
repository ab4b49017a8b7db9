"""Linear layers and their tensor-parallel shards."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch.nn import functional as F

from sglang_plug import BuildEnv, Kernels
from sglang_plug.layers import Embedding, Linear, MergedColumnParallelLinear, ParallelLMHead

ENV = BuildEnv(attention=Mock())


def test_packed_parts_are_the_parts_multiplied_alone() -> None:
    layer = MergedColumnParallelLinear(8, {"q": 6, "k": 2, "v": 4}, ENV, bias=True)
    weights = {name: (torch.randn(size, 8), torch.randn(size)) for name, size in (("q", 6), ("k", 2), ("v", 4))}
    for name, (weight, bias) in weights.items():
        layer.load_shard(layer.weight.data, weight, name)
        layer.load_shard(layer.bias.data, bias, name)
    x = torch.randn(3, 8)
    for packed in (False, True):
        if packed:
            layer.pack_weights()
        for actual, (weight, bias) in zip(layer.split(x), weights.values(), strict=True):
            torch.testing.assert_close(actual, F.linear(x, weight, bias))


def test_a_shard_of_another_shape_is_refused() -> None:
    layer = MergedColumnParallelLinear(8, {"gate": 6, "up": 6}, ENV)
    with pytest.raises(ValueError, match=r"expected shape \(6, 8\), found \(5, 8\)"):
        layer.load_shard(layer.weight.data, torch.zeros(5, 8), "gate")
    with pytest.raises(ValueError, match="expected shape"):
        layer.load_shard(layer.weight.data, torch.zeros(1, 8), "gate")
    layer.load_shard(layer.weight.data, torch.ones(12, 8), None)
    assert bool((layer.weight == 1).all())


def test_packing_hands_the_weight_over_once() -> None:
    pack = Mock(return_value=lambda x: x * 2)
    layer = Linear(4, 4, BuildEnv(attention=Mock(), kernels=Kernels(pack_linear=pack)))
    layer.pack_weights()
    layer.pack_weights()
    assert pack.call_count == 1
    assert list(layer.parameters()) == []
    assert layer(torch.ones(1, 4)).tolist() == [[2.0] * 4]


def test_a_tied_head_uses_the_embedding_and_leaves_it() -> None:
    embedding = Embedding(10, 4)
    torch.nn.init.normal_(embedding.weight)
    head = ParallelLMHead(4, 10, ENV, tied=embedding)
    assert head.weight is embedding.weight
    head.pack_weights()
    x = torch.randn(2, 4)
    torch.testing.assert_close(head(x), x @ embedding.weight.T)
    assert embedding(torch.tensor([3])).shape == (1, 4)
