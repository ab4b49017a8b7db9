"""The attention between the pieces of a captured forward pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import CannotCaptureError, UnreadLengths
from sglang_plug_backends.cuda_graphs.piecewise_graphs import Attended


def test_padding_gets_zeros() -> None:
    """Rows of padding are zero, whatever the previous step left in them."""
    inputs = tuple(torch.arange(12.0).view(6, 2) + index for index in range(3))
    result, weights = torch.full((6, 2), torch.nan), torch.full((6,), torch.nan)

    def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
        return q + k + v, q[:, 0]

    attended = Attended(attend, None, inputs, (result, weights), (torch.zeros(6, 2), torch.zeros(6)))  # type: ignore[arg-type]
    attended.run(None, 4)  # type: ignore[arg-type]
    assert torch.equal(result[:4], sum(inputs)[:4]) and not result[4:].any()  # type: ignore[index]
    assert torch.equal(weights, torch.tensor([0.0, 2.0, 4.0, 6.0, 0.0, 0.0]))
    attended.run(None, 6)  # type: ignore[arg-type]
    assert torch.equal(result, sum(inputs)) and weights[5] == 10  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "look", [len, max, list, lambda value: value[0], lambda value: 3 in value, lambda value: value == [1]]
)
def test_what_must_not_be_looked_at(look: Any) -> None:
    with pytest.raises(CannotCaptureError, match="lengths of sequences"):
        look(UnreadLengths())
