"""Matrices in codes: few rows are multiplied with the codes, many with the matrix that they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.coded import CodedWeight
from sglang_plug.kernels import LinearFunction

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .kernels_coded import coded_kernel, dense_kernel
from .launch import launch_options, precision, reads, runs

MOST_ROWS = 64
"""More rows than this are multiplied by the library: then arithmetic takes the time, not reading the matrix."""
PROGRAMS, PROGRAMS_OF_FEW, FEW_ROWS = 264, 792, 8
"""At work at once, if there is enough to do: two for each multiprocessor of a large GPU; six of few rows, whose sums
cost little to add up, so that more of the matrix is on its way."""
MOST_SPLITS = 16
DEPTH_BLOCKS = (128, 64, 32)
FLOATS = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Sizes of one program's work."""

    rows: int
    columns: int
    depth: int
    splits: int
    """Programs that share the depth; their sums are added up."""


def pack_coded(
    weight: CodedWeight, bias: Tensor | None, dtype: torch.dtype, *, overlap: bool = False
) -> LinearFunction | None:
    """``weight`` as it is, multiplied with inputs in ``dtype``; ``None`` if no kernel takes it."""
    depth = depth_block(weight)
    tensors = [one for one in (weight.codes, weight.scale, weight.zero) if one is not None]
    if depth is None or dtype not in FLOATS or not runs(*tensors) or not reads(weight.codes.dtype, weight.codes.device):
        return None

    def linear(x: Tensor) -> Tensor:
        if not x.shape[0]:
            return x.new_empty(0, weight.shape[0])
        if x.shape[0] > MOST_ROWS:
            return F.linear(x, dense(weight, x.dtype, depth, overlap=overlap), bias)
        return multiply(x.contiguous(), weight, bias, blocks_for(x.shape[0], weight, depth), overlap=overlap)

    return linear


def depth_block(weight: CodedWeight) -> int | None:
    """Columns that are multiplied at once, all of one group; ``None``: groups are too small, or odd."""
    whole = weight.group >= weight.shape[1]
    return next((one for one in DEPTH_BLOCKS if whole or weight.group % one == 0), None)


def blocks_for(rows: int, weight: CodedWeight, depth: int) -> Blocks:
    """For so many rows: as many programs as the device has at work, as far as there is something to do for them."""
    size, total = weight.shape
    high = next(one for one in (16, 32, 64) if rows <= one)
    wide = 64 if high < 64 else 128
    programs = -(-size // wide)
    wanted = PROGRAMS_OF_FEW if rows <= FEW_ROWS else PROGRAMS
    splits = max(1, min(wanted // programs, -(-total // depth) // 2, MOST_SPLITS))
    return Blocks(rows=high, columns=wide, depth=depth, splits=splits)


def multiply(x: Tensor, weight: CodedWeight, bias: Tensor | None, blocks: Blocks, *, overlap: bool = False) -> Tensor:
    """``[rows, in]`` to ``[rows, out]``."""
    rows, depth = x.shape
    size = weight.shape[0]
    together = blocks.splits > 1
    out = torch.empty(blocks.splits, rows, size, dtype=torch.float32 if together else x.dtype, device=x.device)
    biased = bias is not None and not together
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        coded_kernel[(-(-size // blocks.columns), -(-rows // blocks.rows), blocks.splits)](
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
    found = out.sum(0)
    return (found if bias is None else found.add_(bias)).to(x.dtype)


def dense(weight: CodedWeight, dtype: torch.dtype, block: int, *, overlap: bool = False) -> Tensor:
    """The matrix ``[out, in]``."""
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
