"""The conformance test of quantizations finds planted faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import ConfigError, LinearScheme, Matrix, Quantization, QuantizationRequest, StoredTensor
from sglang_plug.testing import check_quantization

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def quantization(product: Product) -> Callable[[QuantizationRequest, Any], Quantization]:
    """Return a quantization that keeps weights unchanged and multiplies with ``product``."""

    def pack(held: Any, bias: Tensor | None) -> Any:
        return lambda x: product(x, held["weight"], bias)

    return lambda request, settings: Quantization(name="mine", scheme=lambda matrix: LinearScheme(pack=pack))


def test_exact_products_conform() -> None:
    check_quantization(quantization(F.linear), tolerance=0.01)


def writes_input(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.mul_(1.5), weight, bias)


def rough(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    step = weight.abs().max() / 3
    return F.linear(x, (weight / step).round() * step, bias)


def wrong_for_many(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    actual = F.linear(x, weight, bias)
    actual[64:] *= 1.3
    return actual


def needs_blocks(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.unflatten(1, (-1, 32)).flatten(1), bias)


def test_sizes_that_blocks_do_not_divide_may_be_refused() -> None:
    def scheme(matrix: Matrix) -> LinearScheme | None:
        if matrix.size_in % 32:
            raise ConfigError("the input must be a multiple of 32")
        return LinearScheme(pack=lambda held, bias: lambda x: needs_blocks(x, held["weight"], bias))

    check_quantization(lambda request, settings: Quantization(name="mine", scheme=scheme))
    check_quantization(
        lambda request, settings: Quantization(
            name="mine", scheme=lambda matrix: None if matrix.size_in % 32 else scheme(matrix)
        )
    )


NF4 = torch.tensor(
    [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0]
    + [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0]
)
"""The values of 4-bit NormalFloat (Dettmers et al., QLoRA, 2023)."""


def normal_float(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply with weights in NF4, in blocks of 32 with a scale each."""
    blocks = weight.float().reshape(-1, 32)
    scales = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    nearest = (blocks[..., None] / scales[..., None] - NF4).abs().argmin(-1)
    return F.linear(x, (NF4[nearest] * scales).reshape(weight.shape).to(x.dtype), bias)


def test_products_may_be_off_by_what_the_bits_allow() -> None:
    check_quantization(quantization(normal_float), bits=4)
    with pytest.raises(AssertionError, match="a product is off by"):
        check_quantization(quantization(rough), bits=4)


def one_scale_for_all(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    step = x.abs().max().float() / 127
    return F.linear(((x.float() / step).round() * step).to(x.dtype), weight, bias)


def divides_by_zero(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    step = x.float().abs().amax(-1, keepdim=True) / 127
    return F.linear(((x.float() / step).round() * step).to(x.dtype), weight, bias)


def dense_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x.as_strided(x.shape, (x.shape[1], 1)), weight, bias)


@pytest.mark.planted_bug("quantization")
@pytest.mark.parametrize(
    ("product", "message"),
    [
        (writes_input, "mine fails 64 to 96 .* 1 rows: the input was written to"),
        (rough, "mine fails .* a product is off by"),
        (needs_blocks, "mine fails 72 to 40 in torch.bfloat16, .*: raised RuntimeError: unflatten"),
        (wrong_for_many, "65 rows: a product is off by 0.3"),
        (lambda x, weight, bias: F.linear(x, weight), "with a bias, 1 rows: a row of zeros does not give the bias"),
        (lambda x, weight, bias: F.linear(x, weight, bias).float(), "in torch.bfloat16.*found torch.float32"),
        (lambda x, weight, bias: F.linear(x, weight, bias)[:, :-1], r"found \[1, 95\], not \[1, 96\]"),
        (lambda x, weight, bias: F.linear(x, weight, bias) * torch.nan, "a row of zeros|a product is off by nan"),
        (one_scale_for_all, "a row's result must not depend on other rows"),
        (divides_by_zero, "the product of a row of zeros, or of its neighbours, is not finite"),
        (dense_rows, "whose rows are parts of a wider tensor is another one"),
    ],
)
def test_others_do_not(product: Product, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_quantization(quantization(product))


def test_schemes_that_do_not_fit_ordinary_weights() -> None:
    with pytest.raises(AssertionError, match="there is no scheme for it"):
        check_quantization(lambda request, settings: Quantization(name="shy", scheme=lambda matrix: None))
    stored = {"weight": StoredTensor(shape=(1,), dtype=torch.int8)}
    scheme = LinearScheme(pack=lambda held, bias: F.relu, stored=stored)
    with pytest.raises(AssertionError, match="stored tensors are expected"):
        check_quantization(lambda request, settings: Quantization(name="eager", scheme=lambda matrix: scheme))
