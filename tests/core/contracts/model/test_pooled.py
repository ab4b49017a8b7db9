"""Pooling reduces the hidden states of each prompt to one vector."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from sglang_plug import Pooling, Projection
from sglang_plug.contracts.model.pooling import PoolingMode
from sglang_plug.ops.pooling import pooled

LENGTHS = (3, 1, 5)
EXPECTED: Mapping[PoolingMode, Callable[[Tensor], Tensor]] = {
    "last": lambda x: x[-1],
    "cls": lambda x: x[0],
    "mean": lambda x: x.sum(0) / len(x),
    "max": lambda x: x.max(dim=0).values,
    "mean_sqrt_len": lambda x: x.sum(0) / len(x) ** 0.5,
    "weighted_mean": lambda x: (
        torch.stack([(index + 1) * row for index, row in enumerate(x)]).sum(0) / sum(range(1, len(x) + 1))
    ),
}


@pytest.mark.parametrize("mode", EXPECTED)
@pytest.mark.parametrize("normalize", [True, False])
def test_every_mode(mode: PoolingMode, normalize: bool) -> None:
    hidden = torch.randn(sum(LENGTHS), 4)
    expected = torch.stack([EXPECTED[mode](part) for part in hidden.split(LENGTHS)])
    if normalize:
        expected = expected / expected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(pooled(hidden, LENGTHS, Pooling(mode=mode, normalize=normalize)), expected)


def test_states_of_few_digits_are_added_up_in_many() -> None:
    hidden = torch.full((4096, 2), 1.01, dtype=torch.bfloat16)
    actual = pooled(hidden, (4096,), Pooling(mode="mean", normalize=False))
    torch.testing.assert_close(actual, hidden[:1].float())


def test_projections_come_in_order_and_before_the_norm() -> None:
    hidden = torch.randn(2, 4)
    first = Projection(weight=torch.randn(6, 4), bias=torch.randn(6), activation=torch.tanh)
    second = Projection(weight=torch.randn(3, 6))
    actual = pooled(hidden, (1, 1), Pooling(projections=(first, second)))
    assert first.bias is not None
    expected = (hidden @ first.weight.T + first.bias).tanh() @ second.weight.T
    torch.testing.assert_close(actual, expected / expected.norm(dim=-1, keepdim=True))


def test_matrices_go_to_the_device() -> None:
    pooling = Pooling(mode="max", projections=(Projection(weight=torch.ones(2, 2), bias=torch.ones(2)),)).to("meta")
    (projection,) = pooling.projections
    assert (
        projection.weight.is_meta and projection.bias is not None and projection.bias.is_meta and pooling.mode == "max"
    )
