"""Products with int8 matrices equal their definition, for every tile height and batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sglang_plug.contracts.model.kernels import LinearFunction
from sglang_plug_backends.avx512 import kernels

pytestmark = pytest.mark.usefixtures("compiled")
SIZES = [(64, 48), (1, 7), (33, 5), (31, 130), (320, 258), (896, 4864)]
"""``(out, in)``: odd widths, depths that are no multiple of four, and a deep one."""


def packed(weight: Tensor, scale: Tensor, bias: Tensor | None) -> LinearFunction:
    pack = kernels.build().pack_int8
    assert pack is not None
    return pack(weight, scale, bias)


def matrix(size_out: int, size_in: int, bias: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    torch.manual_seed(size_out + size_in)
    weight = torch.randint(-127, 128, (size_out, size_in), dtype=torch.int8)
    scale = torch.logspace(-3, 0, size_out).bfloat16()
    return weight, scale, torch.randn(size_out).bfloat16() if bias else None


@pytest.mark.parametrize(("size_out", "size_in"), SIZES)
@pytest.mark.parametrize("bias", [True, False])
def test_products(size_out: int, size_in: int, bias: bool) -> None:
    weight, scale, offset = matrix(size_out, size_in, bias)
    linear = packed(weight, scale, offset)
    for rows in (0, 1, 2, 3, 4, 5, 6, 7, 13, 40, 100):
        x = torch.randn(rows, size_in).bfloat16() * torch.logspace(-4, 4, rows)[:, None].bfloat16()
        result = linear(x)
        sizes = x.double().norm(dim=1)[:, None] * weight.double().norm(dim=1) * scale.double()
        expected = x.double() @ (weight.double().T * scale.double())
        if offset is not None:
            expected += offset.double()
        assert result.dtype == torch.bfloat16 and result.shape == (rows, size_out)
        # activations have 16 bits, so the errors come from the rounding of the result and from cancellation
        assert bool(((result - expected).abs() <= expected.abs() * 2**-8 + sizes * 2**-13).all())


def test_a_row_does_not_depend_on_the_others() -> None:
    weight, scale, _ = matrix(200, 300, False)
    linear = packed(weight, scale, None)
    x = torch.randn(50, 300).bfloat16()
    together = linear(x)
    for row in (0, 7, 49):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    weight, scale, _ = matrix(40, 20, False)
    x = torch.ones(4, 20).bfloat16()
    x[1, 3], x[2, 5], x[3] = torch.inf, torch.nan, 0
    result = packed(weight, scale, None)(x)
    assert bool(result[1].isnan().all()) and bool(result[2].isnan().all())
    assert bool(result[0].isfinite().all()) and not result[3].any()


def test_the_largest_sums_fit() -> None:
    weight = torch.full((2, 65_536), 127, dtype=torch.int8)
    weight[1] = -127
    x = torch.full((1, 65_536), 2.0).bfloat16()
    result = packed(weight, torch.ones(2), None)(x)
    assert result.tolist() == [[pytest.approx(2 * 127 * 65_536, rel=0.01), pytest.approx(-2 * 127 * 65_536, rel=0.01)]]
