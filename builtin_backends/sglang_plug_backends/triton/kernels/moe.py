"""Expert matrices times their tokens, sorted by expert and split into blocks of one expert each."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs


@triton.jit  # type: ignore[untyped-decorator]
def grouped_kernel(
    x_pointer: tl.tensor,  # [T, DEPTH] if GATHER, else [P, DEPTH] in sorted order
    weight_pointer: tl.tensor,  # [E, columns, DEPTH]
    out_pointer: tl.tensor,  # [P, columns]: in sorted order if GATHER, else in the pairs' own order
    order_pointer: tl.tensor,  # [P]: the pair at each position of the sorted order
    factor_pointer: tl.tensor,  # [P] float32, of each pair; used if not GATHER
    experts_pointer: tl.tensor,  # [blocks]: each block's expert, or E: nothing to do
    starts_pointer: tl.tensor,  # [blocks]: its first position in the sorted order
    ends_pointer: tl.tensor,  # [blocks]: the position after its expert's last
    columns: tl.tensor,
    chosen: tl.tensor,  # experts of each token
    x_stride: tl.tensor,
    EXPERTS: tl.constexpr,
    DEPTH: tl.constexpr,
    GATHER: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    DEPTH_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    block = tl.program_id(1)
    expert = tl.load(experts_pointer + block)
    if expert < EXPERTS:
        positions = tl.load(starts_pointer + block) + tl.arange(0, ROW_BLOCK)
        row_ok = positions < tl.load(ends_pointer + block)
        pairs = tl.load(order_pointer + positions, mask=row_ok, other=0).to(tl.int64)
        rows = positions.to(tl.int64)
        if GATHER:
            rows = pairs // chosen
        own = tl.program_id(0) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
        column_ok = own < columns
        depths = tl.arange(0, DEPTH_BLOCK)
        x_base = x_pointer + rows[:, None] * x_stride + depths[None, :]
        weight_base = weight_pointer + (expert.to(tl.int64) * columns + own[None, :]) * DEPTH + depths[:, None]
        total = tl.zeros([ROW_BLOCK, COLUMN_BLOCK], tl.float32)
        for depth in range(0, DEPTH, DEPTH_BLOCK):
            depth_ok = depths < DEPTH - depth
            x = tl.load(x_base + depth, mask=row_ok[:, None] & depth_ok[None, :], other=0.0)
            weight = tl.load(weight_base + depth, mask=depth_ok[:, None] & column_ok[None, :], other=0.0)
            if PRECISION == "ieee":
                x, weight = x.to(tl.float32), weight.to(tl.float32)
            total = tl.dot(x, weight, total, input_precision=PRECISION)
        targets = positions.to(tl.int64)
        if not GATHER:
            targets = pairs
            total = total * tl.load(factor_pointer + pairs, mask=row_ok, other=0.0)[:, None]
        out = out_pointer + targets[:, None] * columns + own[None, :]
        tl.store(out, total.to(out_pointer.dtype.element_ty), mask=row_ok[:, None] & column_ok[None, :])
