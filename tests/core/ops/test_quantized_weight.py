"""Quantized weights, and the matrices that they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_plug.ops.quantized_weight import QuantizedWeight


def test_four_bits() -> None:
    codes = torch.tensor([[0x21, 0x43], [0xF0, 0x0F]], dtype=torch.uint8)
    weight = QuantizedWeight(
        codes=codes,
        scale=torch.tensor([[1.0, 10.0], [0.5, 2.0]]),
        zero=torch.tensor([[1, 0], [15, 8]], dtype=torch.uint8),
        group=2,
        bits=4,
    )
    assert weight.shape == (2, 4)
    assert weight.dense(torch.float32).tolist() == [[0, 1, 30, 40], [-7.5, 0, 14, -16]]
    assert weight.dense(torch.bfloat16, slice(1, 2)).tolist() == [[-7.5, 0, 14, -16]]


def test_e4m3_and_a_last_group_that_is_smaller() -> None:
    codes = torch.tensor([[1.0, -2.0, 448.0]]).to(torch.float8_e4m3fn)
    weight = QuantizedWeight(codes=codes, scale=torch.tensor([[2.0, 0.5]]), group=2)
    assert weight.dense(torch.float32).tolist() == [[2, -4, 224]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": torch.ones(2, 1)}, r"scale has shape .2, 1., and not .2, 2."),
        ({"zero": torch.ones(1, 2, dtype=torch.uint8)}, r"zero has shape .1, 2., and not .2, 2."),
        ({"scale": torch.ones(2, 2).T}, r"scale is not contiguous: shape .2, 2., strides .1, 2."),
        ({"zero": None}, "codes in torch.uint8 need a zero"),
        ({"codes": torch.zeros(2, 8).to(torch.float8_e4m3fn)}, "codes in torch.float8_e4m3fn have no zero"),
    ],
)
def test_tensors_that_do_not_fit_together(change: dict[str, Any], message: str) -> None:
    tensors = {
        "codes": torch.zeros(2, 8, dtype=torch.uint8),
        "scale": torch.ones(2, 2),
        "zero": torch.zeros(2, 2, dtype=torch.uint8),
    }
    with pytest.raises(ValueError, match=message):
        QuantizedWeight(**{**tensors, **change}, group=4)  # type: ignore[arg-type]
