"""Matrix multiplication with quantized weights: fused for few rows, after dequantization for many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import LinearFunction, QuantizedWeight
from sglang_plug_backends.triton.kernels.quantized import dense_kernel, quantized_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import launch_options, precision, reads, runs

MAX_ROWS = 64
"""Rows above which the library multiplies, because arithmetic is the bottleneck."""
PROGRAMS, PROGRAMS_OF_FEW, FEW_ROWS = 264, 792, 8
"""Concurrent programs if there is enough work, and the limit of few rows.

Two for each multiprocessor of a large GPU; six for few rows, whose sums are cheap, so that more of the matrix is in
flight.
"""
MAX_SPLITS = 16
DEPTH_BLOCKS = (128, 64, 32)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Sizes of one program's work."""

    rows: int
    columns: int
    depth: int
    splits: int
    """Programs that share the depth and add up their sums."""


def pack_quantized(
    weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, *, overlap: bool = False
) -> LinearFunction | None:
    """Return a product with ``weight`` for inputs in ``dtype``; ``None`` if no kernel supports it."""
    depth = depth_block(weight)
    tensors = [tensor for tensor in (weight.codes, weight.scale, weight.zero) if tensor is not None]
    if depth is None or dtype not in FLOATS or not runs(*tensors) or not reads(weight.codes.dtype, weight.codes.device):
        return None

    def linear(x: Tensor) -> Tensor:
        if not x.shape[0]:
            return x.new_empty(0, weight.shape[0])
        if x.shape[0] > MAX_ROWS:
            return F.linear(x, dense(weight, x.dtype, depth, overlap=overlap), bias)
        return multiply(x.contiguous(), weight, bias, blocks_for(x.shape[0], weight, depth), overlap=overlap)

    return linear


def depth_block(weight: QuantizedWeight) -> int | None:
    """Return the columns multiplied at once, all of one group; ``None`` if groups are too small or odd."""
    whole = weight.group >= weight.shape[1]
    return next((block for block in DEPTH_BLOCKS if whole or weight.group % block == 0), None)


def blocks_for(rows: int, weight: QuantizedWeight, depth: int) -> Blocks:
    """Return blocks for this many rows: enough programs to fill the device, as far as there is work."""
    size, total = weight.shape
    high = next(limit for limit in (16, 32, 64) if rows <= limit)
    wide = 64 if high < 64 else 128
    programs = -(-size // wide)
    target_programs = PROGRAMS_OF_FEW if rows <= FEW_ROWS else PROGRAMS
    splits = max(1, min(target_programs // programs, -(-total // depth) // 2, MAX_SPLITS))
    return Blocks(rows=high, columns=wide, depth=depth, splits=splits)


def multiply(
    x: Tensor, weight: QuantizedWeight, bias: Tensor | None, blocks: Blocks, *, overlap: bool = False
) -> Tensor:
    """Multiply ``[rows, in]`` to ``[rows, out]``."""
    rows, depth = x.shape
    size = weight.shape[0]
    together = blocks.splits > 1
    out = torch.empty(blocks.splits, rows, size, dtype=torch.float32 if together else x.dtype, device=x.device)
    biased = bias is not None and not together
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        quantized_kernel[(-(-size // blocks.columns), -(-rows // blocks.rows), blocks.splits)](
            x,
            weight.codes,
            weight.scale,
            weight.scale if weight.zero is None else weight.zero,
            bias if biased else x,
            out,
            rows,
            size,
            DEPTH=depth,
            GROUP=min(weight.group, depth),
            BITS=weight.bits,
            WHOLE=weight.zero is not None,
            BIASED=biased,
            ROW_BLOCK=blocks.rows,
            COLUMN_BLOCK=blocks.columns,
            DEPTH_BLOCK=blocks.depth,
            SPLITS=blocks.splits,
            PRECISION=precision(x.dtype),
            num_warps=4,
            num_stages=4,
            **launch_options(x.device, overlap),
        )
    if not together:
        return out[0]
    result = out.sum(0)
    return (result if bias is None else result.add_(bias)).to(x.dtype)


def dense(weight: QuantizedWeight, dtype: torch.dtype, block: int, *, overlap: bool = False) -> Tensor:
    """Dequantize to the matrix ``[out, in]``."""
    size, depth = weight.shape
    out = torch.empty(size, depth, dtype=dtype, device=weight.codes.device)
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        dense_kernel[(-(-size // 32), -(-depth // block))](
            weight.codes,
            weight.scale,
            weight.scale if weight.zero is None else weight.zero,
            out,
            size,
            DEPTH=depth,
            GROUP=min(weight.group, depth),
            BITS=weight.bits,
            WHOLE=weight.zero is not None,
            COLUMN_BLOCK=32,
            DEPTH_BLOCK=block,
            num_warps=4,
            **launch_options(out.device, overlap),
        )
    return out
