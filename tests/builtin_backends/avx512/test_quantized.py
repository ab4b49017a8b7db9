"""Products with quantized weights equal their definition, for every tile height and batch."""

from __future__ import annotations

import pytest
import torch

from sglang_plug import CannotCaptureError
from sglang_plug.contracts.model.kernels import LinearFunction
from sglang_plug.ops.quantized_weight import QuantizedWeight
from sglang_plug_backends.avx512 import kernels
from sglang_plug_backends.avx512.library import load
from sglang_plug_backends.avx512.recorder import CallRecorder
from tests.builtin_backends.quantized_weights import SIZES, random_weight

pytestmark = pytest.mark.usefixtures("compiled")
KINDS = ("4", "8", "e4m3")
HEIGHTS = (0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 25, 60)


def packed(weight: QuantizedWeight, bias: torch.Tensor | None = None) -> LinearFunction | None:
    pack = kernels.build().pack_quantized
    assert pack is not None
    return pack(weight, bias, torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size_out", "size_in", "group"), SIZES)
def test_products(kind: str, size_out: int, size_in: int, group: int) -> None:
    weight, bias = random_weight(kind, size_out, size_in, group), torch.randn(size_out).bfloat16()
    for offset in (None, bias):
        linear = packed(weight, offset)
        assert linear is not None
        for rows in HEIGHTS:
            x = torch.randn(rows, size_in).bfloat16() * torch.logspace(-4, 4, rows)[:, None].bfloat16()
            actual, exact = linear(x), weight.dense(torch.float64)
            expected = x.double() @ exact.T + (0 if offset is None else offset.double())
            sizes = x.double().norm(dim=1)[:, None] * exact.norm(dim=1)
            assert actual.dtype == torch.bfloat16 and actual.shape == (rows, size_out)
            # activations have 16 bits, so the errors come from the rounding of the result and from cancellation
            assert bool(((actual - expected).abs() <= expected.abs() * 2**-8 + sizes * 2**-13).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_the_others(kind: str) -> None:
    linear = packed(random_weight(kind, 200, 320, 64))
    assert linear is not None
    x = torch.randn(50, 320).bfloat16()
    together = linear(x)
    for row in (0, 7, 49):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_stay_in_their_rows(kind: str) -> None:
    linear = packed(random_weight(kind, 40, 64, 32))
    assert linear is not None
    x = torch.ones(4, 64).bfloat16()
    x[1, 3], x[2, 40], x[3] = torch.inf, torch.nan, 0
    result = linear(x)
    assert not bool(result[1].isfinite().any()) and bool(result[2].isnan().all())
    assert bool(result[0].isfinite().all()) and not result[3].any()


@pytest.mark.parametrize(("bits", "columns"), [(4, 4096), (8, 256), (4, 12_288), (8, 1024)])
def test_the_largest_sums_fit(bits: int, columns: int) -> None:
    largest = (1 << bits) - 1
    codes = torch.full((2, columns * bits // 8), 255, dtype=torch.uint8)
    codes[1] = 0
    zero = torch.tensor([[0], [largest]], dtype=torch.uint8)
    weight = QuantizedWeight(codes=codes, scale=torch.ones(2, 1), zero=zero, group=columns, bits=bits)  # type: ignore[arg-type]
    linear = packed(weight)
    assert linear is not None
    result = linear(torch.full((1, columns), 2.0).bfloat16())
    assert result.tolist() == [
        [pytest.approx(2 * largest * columns, rel=0.01), pytest.approx(-2 * largest * columns, rel=0.01)]
    ]


def test_an_outlier_takes_nothing_from_other_groups() -> None:
    weight = random_weight("4", 32, 128, 32)
    linear = packed(weight)
    assert linear is not None
    x = torch.randn(1, 128).bfloat16() * 1e-6
    exact = x[:, 32:].double() @ weight.dense(torch.float64)[:, 32:].T
    x[0, 0] = 1e6
    codes = weight.codes.clone()
    codes[:, 0] = codes[:, 0] & 0xF0 | weight.zero[:, 0]  # type: ignore[index]
    x[0, 1:32] = 0
    quiet = QuantizedWeight(codes=codes, scale=weight.scale, zero=weight.zero, group=32, bits=4)
    linear = packed(quiet)
    assert linear is not None
    torch.testing.assert_close(linear(x).double(), exact, rtol=2e-2, atol=float(exact.abs().max()) * 1e-2)


def test_every_number_in_e4m3() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes[127], codes[255] = 0, 0  # the codes of NaN
    weight = QuantizedWeight(
        codes=codes[:, None].repeat(1, 2).view(torch.float8_e4m3fn), scale=torch.ones(256, 1), group=2
    )
    linear = packed(weight)
    assert linear is not None
    x = torch.tensor([[1.0, 0.0]]).bfloat16()
    assert torch.equal(linear(x)[0].float(), weight.codes[:, 0].float())


def test_unsupported_weights_are_declined() -> None:
    pack = kernels.build().pack_quantized
    assert pack is not None
    weight = random_weight("4", 32, 64, 32)
    assert pack(weight, None, torch.float32) is None
    assert packed(random_weight("8", 32, 66, 66)) is None
    broken = torch.full((2, 2), 0x7F, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert packed(QuantizedWeight(codes=broken, scale=torch.ones(2, 1), group=2)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_product_is_done_again(kind: str) -> None:
    linear = packed(random_weight(kind, 64, 64, 32), torch.randn(64).bfloat16())
    assert linear is not None
    x, out = torch.randn(2, 64).bfloat16(), []
    try:
        again = CallRecorder(load()).capture(lambda: out.append(linear(x)))
    except CannotCaptureError as error:
        pytest.fail(str(error))
    x.copy_(torch.randn(2, 64))
    again()
    assert torch.equal(out[0], linear(x))
