"""Matrices quantized to int8 are close to the original ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from sglang_plug import ConfigError, Kernels, Matrix, QuantizationRequest
from sglang_plug.contracts.model.kernels import LinearFunction
from sglang_plug.testing import check_quantization
from sglang_plug_backends.quantization import int8
from sglang_plug_backends.quantization.settings import Int8Settings

REQUEST = QuantizationRequest(device=torch.device("cpu"), dtype=torch.bfloat16)


def test_conformance() -> None:
    check_quantization("int8", tolerance=0.02)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 70),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
)
def test_every_weight_is_within_half_a_step(rows: int, columns: int, scale: float, dtype: torch.dtype) -> None:
    torch.manual_seed(rows * 100 + columns)
    weight = (torch.randn(rows, columns) * scale).to(dtype)
    rounded, factor = int8.quantize(weight)
    off = (rounded.float() * factor.float()[:, None] - weight.float()).abs()
    # half a step, and the error of the rounded scale at the largest weights
    slack = 127 * torch.finfo(dtype).eps
    assert bool((off <= factor.float()[:, None] * (0.5 + slack) + 1e-30).all())


def test_rows_that_half_precision_cannot_scale_become_zero() -> None:
    weight = torch.full((2, 8), 1e-7, dtype=torch.float16)
    weight[1] = 1.0
    rounded, factor = int8.quantize(weight)
    assert rounded.tolist() == [[0] * 8, [127] * 8] and factor[0] == 1


@pytest.mark.parametrize("count", [1, 7, int8.MAX_ROWS, int8.MAX_ROWS + 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_are_near(count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(count)
    weight, x, bias = torch.randn(96, 64).to(dtype), torch.randn(count, 64).to(dtype), torch.randn(96).to(dtype)
    result = int8.pack_int8(*int8.quantize(weight), bias)(x)
    expected = F.linear(x.float(), weight.float(), bias.float())
    assert result.shape == expected.shape and result.dtype == dtype
    assert (result.float() - expected).norm() / expected.norm() < 0.02


@pytest.mark.parametrize("head", [False, True])
def test_only_what_multiplies_most(head: bool) -> None:
    quantization = int8.build(REQUEST, Int8Settings(head=head))
    taken = {
        role
        for role in ("linear", "head", "router", "experts")
        if quantization.scheme(
            Matrix(name="x", checkpoint_names=("x",), role=role, size_in=8, size_out=8, dtype=torch.bfloat16)
        )
    }
    assert taken == ({"linear", "head"} if head else {"linear"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stored": {"quant_method": "awq"}}, "quantized .awq."),
    ],
)
def test_refusals(change: dict[str, object], message: str) -> None:
    request = QuantizationRequest(**{"device": REQUEST.device, "dtype": REQUEST.dtype, **change})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        int8.build(request, Int8Settings())


def test_the_kernel_set_multiplies_where_it_can() -> None:
    shapes: list[tuple[int, ...]] = []

    def multiply(weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> LinearFunction:
        shapes.append(tuple(weight.shape))
        return lambda x: x

    def pack(dtype: torch.dtype, size_in: int) -> None:
        request = QuantizationRequest(device=REQUEST.device, dtype=dtype, kernels=Kernels(pack_int8=multiply))
        matrix = Matrix(name="x", checkpoint_names=("x",), size_in=size_in, size_out=2, dtype=dtype)
        scheme = int8.build(request, Int8Settings()).scheme(matrix)
        assert scheme is not None
        scheme.pack({"weight": torch.ones(2, size_in, dtype=dtype)}, None)

    pack(torch.bfloat16, 8)
    pack(torch.float32, 16)
    pack(torch.bfloat16, int8.MAX_COLUMNS + 2)
    assert shapes == [(2, 8)]
