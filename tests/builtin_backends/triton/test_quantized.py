"""Products with quantized weights: interpreted against their definition, and compiled for Hopper."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import kernel_set as kernels
from sglang_plug_backends.triton import quantized
from sglang_plug_backends.triton.quantized import Blocks
from tests.builtin_backends.quantized_weights import random_weight

from .compiling import SHARED_MEMORY, assert_waits_first, compile_only

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

BOUNDS = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SIZES = ((64, 128, 32), (130, 512, 128), (31, 256, 256), (40, 200, 200), (48, 160, 64), (16, 2048, 128))


def close(actual: Tensor, x: Tensor, weight: Any, bias: Tensor | None, where: object) -> None:
    assert actual.dtype == x.dtype and actual.shape == (len(x), weight.shape[0]), where
    expected = x.double() @ weight.dense(torch.float64).T + (0 if bias is None else bias.double())
    error = (actual.double() - expected).norm() / expected.norm()
    assert error <= BOUNDS[x.dtype], (where, float(error))


@pytest.mark.interpreted
def test_interpreted_products() -> None:
    dtypes = list(BOUNDS)
    for (first, kind), (second, size) in itertools.product(enumerate(("4", "8", "e4m3")), enumerate(SIZES)):
        dtype = dtypes[(first + second) % 3]  # each with every kind, and with every size
        weight = random_weight(kind, *size)
        for bias, rows in ((None, 1), (torch.randn(size[0]).to(dtype), 17), (torch.randn(size[0]).to(dtype), 65)):
            linear = quantized.pack_quantized(weight, bias, dtype)
            x = torch.randn(rows, size[1]).to(dtype)
            close(linear(x), x, weight, bias, (kind, size, dtype, rows))
        assert linear(x[:0]).shape == (0, size[0])


@pytest.mark.interpreted
def test_interpreted_products_in_parts() -> None:
    weight, bias = random_weight("4", 100, 640, 64), torch.randn(100)
    for rows, columns, depth, splits in ((16, 64, 32, 1), (16, 128, 64, 3), (32, 32, 64, 10), (16, 64, 64, 16)):
        x = torch.randn(20, 640)
        blocks = Blocks(rows=rows, columns=columns, depth=depth, splits=splits)
        close(quantized.multiply(x, weight, bias, blocks), x, weight, bias, blocks)


@pytest.mark.interpreted
def test_interpreted_dense_matrices() -> None:
    for kind, size in itertools.product(("4", "8", "e4m3"), SIZES):
        weight = random_weight(kind, *size)
        actual = quantized.dense(weight, torch.float32, quantized.depth_block(weight))
        assert torch.equal(actual, weight.dense(torch.float32)), (kind, size)


def test_weights_of_the_host_are_declined() -> None:
    weight = random_weight("4", 64, 128, 32)
    assert quantized.pack_quantized(weight, None, torch.bfloat16) is None, "neither a GPU nor the interpreter"


@pytest.mark.interpreted
def test_unsupported_weights_are_declined() -> None:
    weight = random_weight("4", 64, 128, 32)
    assert quantized.pack_quantized(weight, None, torch.bfloat16) is not None
    assert quantized.pack_quantized(weight, None, torch.float64) is None
    assert quantized.pack_quantized(random_weight("4", 64, 96, 24), None, torch.bfloat16) is None
    assert kernels.build().pack_quantized is not None


def test_programs_are_as_many_as_are_at_work() -> None:
    for rows, size_out, size_in in itertools.product((1, 9, 64), (64, 4096, 152_064), (32, 4096)):
        weight = random_weight("8", 8, size_in, 32)
        blocks = quantized.blocks_for(rows, _Shaped(size_out, weight), 32)  # type: ignore[arg-type]
        assert rows <= blocks.rows and 1 <= blocks.splits <= max(1, size_in // 64)
        programs = -(-size_out // blocks.columns) * blocks.splits
        assert programs <= max(-(-size_out // blocks.columns), quantized.PROGRAMS_OF_FEW)


class _Shaped:
    """A weight that reports a larger shape."""

    def __init__(self, rows: int, weight: Any) -> None:
        self.shape = (rows, weight.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["4", "8", "e4m3"])
def test_compiled_for_hopper(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = compile_only(monkeypatch, tmp_path, quantized)
    linear = quantized.pack_quantized(random_weight(kind, 256, 4096, 128), None, torch.bfloat16, overlap=True)
    assert linear is not None
    for rows in (1, 60, 65):
        linear(torch.zeros(rows, 4096, dtype=torch.bfloat16))
    assert [item.metadata.name for item in results] == ["quantized_kernel", "quantized_kernel", "dense_kernel"]
    assert "mma.sync" in results[0].asm["ptx"] and "wgmma" in results[1].asm["ptx"]
    for result in results:
        assert_waits_first(result)
        assert result.metadata.shared <= SHARED_MEMORY
