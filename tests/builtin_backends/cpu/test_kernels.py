"""The CPU kernels equal their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from sglang_plug.contracts.model import kernels as definitions
from sglang_plug_backends.cpu import kernels


@pytest.mark.parametrize("rows", [1, 3, 32, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear(rows: int, dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(rows)
    weight, x = torch.randn(72, 40).to(dtype), torch.randn(rows, 40).to(dtype)
    bias = torch.randn(72).to(dtype) if with_bias else None
    result = kernels.pack_linear(weight, bias)(x)
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert result.dtype == dtype and result.shape == (rows, 72)
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 64, 65, 200, 1000])
@pytest.mark.parametrize("with_bias", [True, False])
def test_repacked_matrices_multiply_any_number_of_rows(rows: int, dtype: torch.dtype, with_bias: bool) -> None:
    torch.manual_seed(rows)
    weight = torch.randn(300, 256).to(dtype)
    if not kernels.has_packed_product(weight):
        pytest.skip(f"this CPU or torch has no packed products in {dtype}")
    bias = torch.randn(300).to(dtype) if with_bias else None
    x = torch.randn(rows, 512).to(dtype)[:, ::2]
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    linear = kernels.pack_linear(weight, bias)
    weight.zero_()  # the packed weight is a copy
    result = linear(x)
    assert result.dtype == dtype and result.shape == (rows, 300)
    tolerance = 2e-4 if dtype == torch.float32 else 0.5
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=1e-2)


def test_small_matrices_in_float32_and_matrices_in_other_dtypes_keep_their_layout() -> None:
    for weight in (torch.randn(64, 64), torch.randn(300, 256).half(), torch.randn(300, 256).double()):
        assert not kernels.has_packed_product(weight)


@given(st.integers(0, 1 << 20))
def test_at_most_a_sixteenth_of_the_rows_is_added(rows: int) -> None:
    assert rows <= kernels.padded_rows(rows) <= rows + rows // 16


def test_products_are_compiled_for_few_numbers_of_rows() -> None:
    assert len(set(map(kernels.padded_rows, range(4097)))) < 192


TOLERANCE = {torch.float32: {"atol": 1e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 0.05, "rtol": 0.02}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wide_weight", [False, True])
def test_norms(dtype: torch.dtype, wide_weight: bool) -> None:
    x, residual, weight = torch.randn(5, 48).to(dtype), torch.randn(5, 48).to(dtype), torch.randn(48)
    weight = weight if wide_weight else weight.to(dtype)
    actual, expected = kernels.build(), definitions.TORCH
    torch.testing.assert_close(actual.rms_norm(x, weight, 1e-6), expected.rms_norm(x, weight, 1e-6), **TOLERANCE[dtype])
    ours = actual.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    theirs = expected.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    for result, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(result, reference, **TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_mul(dtype: torch.dtype) -> None:
    x = torch.randn(5, 48).to(dtype)
    before = x.clone()
    torch.testing.assert_close(kernels.silu_mul(x), definitions.silu_mul(x), **TOLERANCE[dtype])
    assert torch.equal(x, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 8])
def test_rope(dtype: torch.dtype, width: int) -> None:
    x, angles = torch.randn(5, 3, 16).to(dtype), torch.randn(5, width // 2)
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    before = x.clone()
    torch.testing.assert_close(kernels.apply_rope(x, cos, sin), definitions.apply_rope(x, cos, sin), **TOLERANCE[dtype])
    assert torch.equal(x, before)
