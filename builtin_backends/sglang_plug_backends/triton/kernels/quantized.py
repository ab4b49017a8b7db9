"""Matrix multiplication with quantized weights, and dequantization."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["rows"]
)
def quantized_kernel(
    x_pointer: tl.tensor,  # [rows, DEPTH]
    codes_pointer: tl.tensor,  # [columns, DEPTH], or [columns, DEPTH / 2] with two codes in a byte if BITS is 4
    scale_pointer: tl.tensor,  # [columns, ceil(DEPTH / GROUP)]
    zero_pointer: tl.tensor,  # the same; anything if not WHOLE
    bias_pointer: tl.tensor,  # [columns]; anything if not BIASED
    out_pointer: tl.tensor,  # [SPLITS, rows, columns]
    rows: tl.tensor,
    columns: tl.tensor,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,  # a multiple of DEPTH_BLOCK, or at least DEPTH
    BITS: tl.constexpr,
    WHOLE: tl.constexpr,  # quantized values are integers with a zero point
    BIASED: tl.constexpr,
    ROW_BLOCK: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    DEPTH_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,  # programs that share the depth
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    own = tl.program_id(0) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)
    row_ids = tl.program_id(1) * ROW_BLOCK + tl.arange(0, ROW_BLOCK)
    split = tl.program_id(2)
    column_ok, row_ok = own < columns, row_ids < rows
    EACH: tl.constexpr = 8 // BITS
    GROUPS: tl.constexpr = (DEPTH + GROUP - 1) // GROUP
    BLOCKS: tl.constexpr = (DEPTH + DEPTH_BLOCK - 1) // DEPTH_BLOCK
    SHARE: tl.constexpr = (BLOCKS + SPLITS - 1) // SPLITS
    bytes = tl.arange(0, DEPTH_BLOCK // EACH)
    numbers = tl.arange(0, DEPTH_BLOCK)
    x_base = x_pointer + row_ids.to(tl.int64)[:, None] * DEPTH + numbers[None, :]
    code_base = codes_pointer + own.to(tl.int64)[None, :] * (DEPTH // EACH) + bytes[:, None]
    group_base = own.to(tl.int64) * GROUPS
    kind = x_pointer.dtype.element_ty if PRECISION != "ieee" else tl.float32
    total = tl.zeros([ROW_BLOCK, COLUMN_BLOCK], tl.float32)
    for block in range(split * SHARE, tl.minimum(split * SHARE + SHARE, BLOCKS)):
        depth = block * DEPTH_BLOCK
        x_ok = row_ok[:, None] & (numbers < DEPTH - depth)[None, :]
        code_ok = (bytes * EACH < DEPTH - depth)[:, None] & column_ok[None, :]
        codes = tl.load(code_base + depth // EACH, mask=code_ok, other=0.0 if not WHOLE else 0)
        scale = tl.load(scale_pointer + group_base + depth // GROUP, mask=column_ok, other=0.0).to(tl.float32)
        x = tl.load(x_base + depth, mask=x_ok, other=0.0).to(kind)
        if WHOLE:
            zero = tl.load(zero_pointer + group_base + depth // GROUP, mask=column_ok, other=0).to(tl.int32)[None, :]
            first = codes.to(tl.int32)
            if BITS == 4:
                second = ((first >> 4) - zero).to(tl.float32).to(kind)
                first = first & 15
                even, odd = tl.split(tl.reshape(x, [ROW_BLOCK, DEPTH_BLOCK // 2, 2]))
                part = tl.dot(odd, second, input_precision=PRECISION)
                part = tl.dot(even, (first - zero).to(tl.float32).to(kind), part, input_precision=PRECISION)
            else:
                part = tl.dot(x, (first - zero).to(tl.float32).to(kind), input_precision=PRECISION)
        else:
            part = tl.dot(x, codes.to(tl.float32).to(kind), input_precision=PRECISION)
        total += part * scale[None, :]
    if BIASED:
        total += tl.load(bias_pointer + own, mask=column_ok, other=0.0).to(tl.float32)[None, :]
    target = (split.to(tl.int64) * rows + row_ids[:, None]) * columns + own[None, :]
    tl.store(out_pointer + target, total.to(out_pointer.dtype.element_ty), mask=row_ok[:, None] & column_ok[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def dense_kernel(
    codes_pointer: tl.tensor,  # these and the next two: see ``quantized_kernel``
    scale_pointer: tl.tensor,
    zero_pointer: tl.tensor,
    out_pointer: tl.tensor,  # [columns, DEPTH]
    columns: tl.tensor,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    WHOLE: tl.constexpr,
    COLUMN_BLOCK: tl.constexpr,
    DEPTH_BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    EACH: tl.constexpr = 8 // BITS
    GROUPS: tl.constexpr = (DEPTH + GROUP - 1) // GROUP
    own = (tl.program_id(0) * COLUMN_BLOCK + tl.arange(0, COLUMN_BLOCK)).to(tl.int64)
    depth = tl.program_id(1) * DEPTH_BLOCK
    column_ok = own < columns
    bytes = depth // EACH + tl.arange(0, DEPTH_BLOCK // EACH)
    code_ok = column_ok[:, None] & (bytes * EACH < DEPTH)[None, :]
    code_at = codes_pointer + own[:, None] * (DEPTH // EACH) + bytes[None, :]
    codes = tl.load(code_at, mask=code_ok, other=0.0 if not WHOLE else 0)
    group = own * GROUPS + depth // GROUP
    scale = tl.load(scale_pointer + group, mask=column_ok, other=0.0).to(tl.float32)[:, None]
    if WHOLE:
        zero = tl.load(zero_pointer + group, mask=column_ok, other=0).to(tl.int32)[:, None]
        whole = codes.to(tl.int32)
        if BITS == 4:
            whole = tl.interleave(whole & 15, whole >> 4)
        result = (whole - zero).to(tl.float32) * scale
    else:
        result = codes.to(tl.float32) * scale
    numbers = depth + tl.arange(0, DEPTH_BLOCK)
    ok = column_ok[:, None] & (numbers < DEPTH)[None, :]
    out = out_pointer + own[:, None] * DEPTH + numbers[None, :]
    tl.store(out, result.to(out_pointer.dtype.element_ty), mask=ok)
