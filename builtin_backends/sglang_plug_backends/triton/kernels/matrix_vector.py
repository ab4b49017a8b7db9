"""Matrix-vector product for decoding a single sequence, as fast as the matrix can be read."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import ask_for_rows, await_inputs


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"]
)
def row_kernel(
    x_pointer: tl.tensor,  # [size]
    weight_pointer: tl.tensor,  # [rows, size], or [2 * rows, size] if GATED, whose first half is the gate
    bias_pointer: tl.tensor,  # like a column of the weight; anything if not BIASED
    out_pointer: tl.tensor,  # [rows]
    rows: tl.tensor,
    size: tl.tensor,
    GATED: tl.constexpr,
    BIASED: tl.constexpr,
    ROWS: tl.constexpr,  # of one program
    BLOCK: tl.constexpr,  # columns that it reads at once
    STAGES: tl.constexpr,  # number of such blocks in flight
    SECTORS: tl.constexpr,  # sectors of the weight prefetched while previous kernels run
    AHEAD: tl.constexpr,
) -> None:
    if AHEAD:
        ask_for_rows(weight_pointer, tl.program_id(0) * ROWS, rows, size, ROWS, 2 if GATED else 1, SECTORS)
    await_inputs(AHEAD)
    own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ok = own < rows
    offsets = tl.arange(0, BLOCK)
    first = weight_pointer + own.to(tl.int64)[:, None] * size + offsets[None, :]
    second = first + rows.to(tl.int64) * size
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    other = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, size, BLOCK, num_stages=STAGES):
        inside = start + offsets < size
        x = tl.load(x_pointer + start + offsets, mask=inside, other=0.0).to(tl.float32)[None, :]
        mask = ok[:, None] & inside[None, :]
        total += tl.load(first + start, mask=mask, other=0.0).to(tl.float32) * x
        if GATED:
            other += tl.load(second + start, mask=mask, other=0.0).to(tl.float32) * x
    out = tl.sum(total, 1)
    if BIASED:
        out += tl.load(bias_pointer + own, mask=ok, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(other, 1)
        if BIASED:
            up += tl.load(bias_pointer + rows + own, mask=ok, other=0.0).to(tl.float32)
        out = out * tl.sigmoid(out) * up
    tl.store(out_pointer + own, out.to(out_pointer.dtype.element_ty), mask=ok)
