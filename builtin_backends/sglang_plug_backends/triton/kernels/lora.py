"""LoRA products of rows with different adapters: first down to the ranks, then up to the columns.

Matrices are found by the addresses in a table, which is read on the device: see ``LowRankTable.entries``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs

ALIGNMENT = tl.constexpr(16)
"""Alignment in bytes of all addresses and strides in the table."""
DOWN, RANKS, HEADER = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
UP, FIRST, COUNT, STRIDE, FIELDS = (
    tl.constexpr(0),
    tl.constexpr(1),
    tl.constexpr(2),
    tl.constexpr(3),
    tl.constexpr(4),
)
"""Columns of the table, as in ``sglang_plug.ops.lora``."""


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"]
)
def shrink_kernel(
    x_pointer: tl.tensor,  # [rows, SIZE]
    which_pointer: tl.tensor,  # [rows] int64
    entries_pointer: tl.tensor,  # [slots, HEADER + FIELDS * SEGMENTS] int64
    inner_pointer: tl.tensor,  # [SPLITS, rows, RANK_BLOCK] float32; not written for rows without an adapter
    rows: tl.tensor,
    x_stride: tl.tensor,
    SIZE: tl.constexpr,
    SEGMENTS: tl.constexpr,
    SPLITS: tl.constexpr,  # programs that share a row
    SHARE: tl.constexpr,  # numbers of each of them, a multiple of BLOCK
    RANK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    entry = entries_pointer + tl.load(which_pointer + row) * (HEADER + FIELDS * SEGMENTS)
    ranks = tl.load(entry + RANKS)
    if ranks > 0:
        down = tl.load(entry + DOWN).to(tl.pointer_type(x_pointer.dtype.element_ty))
        down = tl.multiple_of(down, ALIGNMENT)
        numbers, offsets = tl.arange(0, RANK_BLOCK), tl.arange(0, BLOCK)
        first = split * SHARE
        total = tl.zeros((RANK_BLOCK, BLOCK), tl.float32)
        for start in range(first, tl.minimum(first + SHARE, SIZE), BLOCK):
            own = start + offsets
            x = tl.load(x_pointer + row * x_stride + own, mask=own < SIZE, other=0.0).to(tl.float32)
            mask = (numbers < ranks)[:, None] & (own < SIZE)[None, :]
            weights = tl.load(down + numbers[:, None] * SIZE + own[None, :], mask=mask, other=0.0)
            total += weights.to(tl.float32) * x[None, :]
        tl.store(inner_pointer + (split.to(tl.int64) * rows + row) * RANK_BLOCK + numbers, tl.sum(total, 1))


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"]
)
def expand_kernel(
    inner_pointer: tl.tensor,  # see ``shrink_kernel``
    which_pointer: tl.tensor,
    entries_pointer: tl.tensor,
    scales_pointer: tl.tensor,  # [slots, SEGMENTS] float32
    bounds_pointer: tl.tensor,  # [2, SEGMENTS] int32
    y_pointer: tl.tensor,  # [rows, columns]; added to
    rows: tl.tensor,
    y_stride: tl.tensor,
    SEGMENTS: tl.constexpr,
    SPLITS: tl.constexpr,
    RANK_BLOCK: tl.constexpr,
    PART_BLOCK: tl.constexpr,  # ranks of one segment
    COLUMN_BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row, segment = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(which_pointer + row)
    fields = entries_pointer + slot * (HEADER + FIELDS * SEGMENTS) + HEADER + FIELDS * segment
    count = tl.load(fields + COUNT)
    if count > 0:
        WIDTH: tl.constexpr = ALIGNMENT * 8 // y_pointer.dtype.element_ty.primitive_bitwidth
        first_column = tl.multiple_of(tl.load(bounds_pointer + segment), WIDTH)
        own = tl.program_id(2) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
        own_ok = own < tl.multiple_of(tl.load(bounds_pointer + SEGMENTS + segment) - first_column, WIDTH)
        numbers = tl.arange(0, PART_BLOCK)
        number_ok = numbers < count
        source = inner_pointer + row * RANK_BLOCK + tl.load(fields + FIRST) + numbers
        inner = tl.zeros((PART_BLOCK,), tl.float32)
        for split in range(SPLITS):
            inner += tl.load(source + split * rows.to(tl.int64) * RANK_BLOCK, mask=number_ok, other=0.0)
        inner = inner * tl.load(scales_pointer + slot * SEGMENTS + segment)
        up = tl.load(fields + UP).to(tl.pointer_type(y_pointer.dtype.element_ty))
        up = tl.multiple_of(up, ALIGNMENT)
        stride = tl.multiple_of(tl.load(fields + STRIDE), WIDTH)
        mask = number_ok[:, None] & own_ok[None, :]
        weights = tl.load(up + numbers[:, None] * stride + own[None, :], mask=mask, other=0.0).to(tl.float32)
        target = y_pointer + row * y_stride + first_column + own
        result = tl.load(target, mask=own_ok, other=0.0).to(tl.float32) + tl.sum(weights * inner[:, None], 0)
        tl.store(target, result.to(y_pointer.dtype.element_ty), mask=own_ok)
