"""The faster interpreter refuses and computes what Triton's own does."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl


@triton.jit
def outer_sum_kernel(x_pointer, y_pointer, out_pointer, x_size: tl.constexpr, y_size: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_pointer + tl.arange(0, x_size))
    y = tl.load(y_pointer + tl.arange(0, y_size))
    total = x[:, None] + y[None, :]
    offsets = tl.arange(0, x_size)[:, None] * y_size + tl.arange(0, y_size)[None, :]
    tl.store(out_pointer + offsets, total + 1)


@triton.jit
def sum_kernel(x_pointer, y_pointer, out_pointer, x_size: tl.constexpr, y_size: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.load(x_pointer + tl.arange(0, x_size))
    y = tl.load(y_pointer + tl.arange(0, y_size))
    tl.store(out_pointer + tl.arange(0, x_size), x + y)


@pytest.mark.interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_values_of_other_shapes_and_dtypes_are_brought_together(dtype: torch.dtype) -> None:
    x, y = torch.arange(4), torch.arange(8).to(dtype)
    out = torch.zeros(4, 8, dtype=torch.float32)
    outer_sum_kernel[(1,)](x, y, out, 4, 8)
    assert torch.equal(out, (x[:, None] + y[None, :] + 1).float())


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("x_size", "y_size", "message"), [(4, 8, "incompatible dimensions"), (3, 3, "power of (2|two)")]
)
def test_shapes_that_a_compiler_refuses_are_refused(x_size: int, y_size: int, message: str) -> None:
    x, y, out = torch.arange(8.0), torch.arange(8.0), torch.zeros(8)
    with pytest.raises(Exception, match=message):
        sum_kernel[(1,)](x, y, out, x_size, y_size)


def test_types_are_equal_if_their_shapes_and_elements_are() -> None:
    first, second = tl.block_type(tl.float32, [4, 8]), tl.block_type(tl.float32, (tl.constexpr(4), 8))
    assert first == second and str(first) == str(second) and first.numel == 32 and list(first.shape) == [4, 8]
    assert first != tl.block_type(tl.float16, [4, 8]) and first != tl.block_type(tl.float32, [8, 4])
    assert first.with_element_ty(tl.float16) == tl.block_type(tl.float16, [4, 8])
    assert tl.float32 != tl.float16 and tl.float32 == tl.dtype("fp32")
    for shape, error in (([3], ValueError), ([], TypeError)):
        with pytest.raises(error):
            tl.block_type(tl.float32, shape)
