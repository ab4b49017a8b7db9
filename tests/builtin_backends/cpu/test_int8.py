"""Matrices in eight bits are near the ones they were made from."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sglang_plug_backends.cpu import int8


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 70), scale=st.sampled_from([1e-4, 1.0, 1e4]))
def test_every_weight_is_within_half_a_step(rows: int, columns: int, scale: float) -> None:
    torch.manual_seed(rows * 100 + columns)
    weight = (torch.randn(rows, columns) * scale).bfloat16()
    rounded, factor = int8.quantize(weight)
    off = (rounded.float() * factor.float()[:, None] - weight.float()).abs()
    # half a step, and what rounding the factor to bfloat16 adds at the largest weights
    assert bool((off <= factor.float()[:, None] * (0.5 + 127 * 2**-8) + 1e-30).all())


def test_a_row_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 16).bfloat16()
    weight[0] = 1.0
    found = int8.pack_linear(weight, None)(torch.ones(1, 16).bfloat16())
    assert float(found[0, 1]) == 0
    assert float(found[0, 0]) == pytest.approx(16, rel=0.02)


@pytest.mark.parametrize("count", [1, 7, int8.MOST_ROWS, int8.MOST_ROWS + 1])
@pytest.mark.parametrize("with_bias", [True, False])
def test_products_are_near(count: int, with_bias: bool) -> None:
    torch.manual_seed(count)
    weight, x = torch.randn(96, 64).bfloat16(), torch.randn(count, 64).bfloat16()
    bias = torch.randn(96).bfloat16() if with_bias else None
    found = int8.pack_linear(weight, bias)(x)
    expected = F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() / expected.norm() < 0.02


def test_other_dtypes_are_left_as_they_are() -> None:
    weight, x = torch.randn(8, 8), torch.randn(2, 8)
    torch.testing.assert_close(int8.build().pack_linear(weight, None)(x), F.linear(x, weight))
