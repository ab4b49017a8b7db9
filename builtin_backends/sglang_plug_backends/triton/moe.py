"""Mixture of experts without device synchronisation: all shapes follow from the number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import Kernels
from sglang_plug_backends.triton.kernels.moe import grouped_kernel

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .launch import launch_options, precision, runs

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Pairs of token and expert, sorted by expert, in blocks of one expert each. Tensors are int32."""

    order: Tensor
    """``[P]``: the pair (``token * k + choice``) at each position of the sorted order."""
    experts: Tensor
    """``[blocks]``; the number of experts where a block is not needed."""
    starts: Tensor
    """``[blocks]``, the block's first position."""
    ends: Tensor
    """``[blocks]``, the position after the last of the block's expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Sizes of one program's work. It multiplies a block of sorted pairs with a part of their expert's matrix."""

    rows: int
    """Pairs of token and expert; at least 16, which is what tensor cores take."""
    columns: int
    """Rows of the expert's matrix, which are columns of the result."""
    depth: int
    """Numbers of each that are in shared memory at once, a power of two like the others."""
    warps: int
    """Number of warps of 32 threads."""
    stages: int
    """Blocks of ``depth`` in flight from memory; each takes ``(rows + columns) * depth`` numbers."""


TILES = (
    (16, Tiles(rows=16, columns=64, depth=128, warps=4, stages=4)),
    (64, Tiles(rows=64, columns=128, depth=64, warps=4, stages=4)),
    (1 << 62, Tiles(rows=128, columns=128, depth=64, warps=8, stages=3)),
)
"""Sizes in float16 and bfloat16 by the maximum average number of pairs per expert.

With few tokens per expert its matrix is read once for a few rows: small blocks of rows, and deep ones of the matrix,
many in flight. The more tokens there are, the more often a number that was read is used. ``python -m benchmarks.gpu
bench`` compares these with others (part ``moe``) and reports faster ones.
"""
WIDE_TILES = Tiles(rows=16, columns=64, depth=32, warps=4, stages=2)
"""Sizes for float32, whose blocks take twice the memory and use no tensor cores."""


def sort_pairs(experts: Tensor, count: int, rows: int) -> Blocks:
    """Sort ``experts`` ``[T, k]`` out of ``count`` into blocks of at most ``rows`` pairs."""
    chosen = experts.flatten()
    pairs, device = len(chosen), chosen.device
    order = chosen.argsort(stable=True)
    counts = torch.zeros(count, dtype=torch.int64, device=device).scatter_add_(0, chosen, torch.ones_like(chosen))
    ends = counts.cumsum(0)
    blocks = (counts + rows - 1) // rows
    block_ends = blocks.cumsum(0)
    max_blocks = pairs // rows + min(count, pairs)  # every expert may leave one block partly used
    numbers = torch.arange(max_blocks, device=device)
    owner = torch.searchsorted(block_ends, numbers, right=True)
    safe = owner.clamp(max=count - 1)
    starts = ends[safe] - counts[safe] + (numbers - block_ends[safe] + blocks[safe]) * rows
    return Blocks(order=order.int(), experts=owner.int(), starts=starts.int(), ends=ends[safe].int())


def tiles_for(pairs: int, count: int, dtype: torch.dtype) -> Tiles:
    """Return the sizes for ``pairs`` of token and expert."""
    if dtype == torch.float32:
        return WIDE_TILES
    return next(tiles for max_pairs, tiles in TILES if pairs <= max_pairs * count)


def multiply(
    x: Tensor,
    weight: Tensor,
    blocks: Blocks,
    tiles: Tiles,
    *,
    chosen: int,
    factors: Tensor | None,
    out: Tensor,
    overlap: bool = False,
) -> Tensor:
    """Compute ``out[position] = weight[expert] @ x[token]``.

    With ``factors`` it is ``out[pair] = factor * weight[expert] @ x[position]``. ``weight`` is ``[E, columns, depth]``.
    """
    count, columns, depth = weight.shape
    grid = (-(-columns // tiles.columns), len(blocks.experts))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        grouped_kernel[grid](
            x,
            weight,
            out,
            blocks.order,
            blocks.order if factors is None else factors,
            blocks.experts,
            blocks.starts,
            blocks.ends,
            columns,
            chosen,
            x.stride(0),
            EXPERTS=count,
            DEPTH=depth,
            GATHER=factors is None,
            ROW_BLOCK=tiles.rows,
            COLUMN_BLOCK=tiles.columns,
            DEPTH_BLOCK=tiles.depth,
            PRECISION=precision(x.dtype),
            num_warps=tiles.warps,
            num_stages=tiles.stages,
            **launch_options(x.device, overlap),
        )
    return out


def biased_moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    experts: Tensor,
    weights: Tensor,
    gated: Callable[[Tensor], Tensor],
    *,
    overlap: bool = False,
) -> Tensor:
    """Compute the definition in two grouped products without synchronisation; biases and ``gated`` use torch."""
    whole = gate_up.is_contiguous() and down.is_contiguous()
    if not runs(x, gate_up, down, experts) or x.stride(-1) != 1 or not whole:
        return DEFINITIONS.biased_moe(x, gate_up, down, gate_up_bias, down_bias, experts, weights, gated)
    count, hidden, _ = down.shape
    chosen, owners = experts.shape[1], experts.flatten()
    tiles = tiles_for(len(owners), count, x.dtype)
    blocks = sort_pairs(experts, count, tiles.rows)
    pairs = x.new_empty(len(owners), gate_up.shape[1])
    multiply(x, gate_up, blocks, tiles, chosen=chosen, factors=None, out=pairs, overlap=overlap)
    if gate_up_bias is not None:
        pairs += gate_up_bias.index_select(0, owners.index_select(0, blocks.order))
    between = gated(pairs).contiguous()
    parts = torch.empty(len(owners), hidden, dtype=torch.float32, device=x.device)
    factors = weights.flatten().float()
    multiply(between, down, blocks, tiles, chosen=chosen, factors=factors, out=parts, overlap=overlap)
    if down_bias is not None:
        parts += factors[:, None] * down_bias.index_select(0, owners)
    return parts.view(len(x), chosen, hidden).sum(1).to(x.dtype)
