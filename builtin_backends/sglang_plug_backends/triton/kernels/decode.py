"""Decoding: one new token attends to a long context, which several programs split.

``decode_kernel`` reads one part of one sequence's context for all heads of a group at once, so keys and values are
read from memory only once; ``merge_kernel`` combines the parts by their log-sum-exp.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit  # type: ignore[untyped-decorator]
def score_logits(scores: tl.tensor, scale: tl.tensor, SOFTCAP: tl.constexpr) -> tl.tensor:
    """Compute query-key products as logits in base 2."""
    if SOFTCAP > 0:
        scores = SOFTCAP * (2 * tl.sigmoid(2 * scores * scale / SOFTCAP) - 1)  # tanh
        return scores * LOG2_E
    return scores * (scale * LOG2_E)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["splits", "table_stride"]
)
def decode_kernel(
    q_pointer: tl.tensor,  # [T, heads, DIM]
    k_pointer: tl.tensor,  # [slots, kv_heads, DIM]
    v_pointer: tl.tensor,  # [slots, kv_heads, VALUE_DIM]
    part_pointer: tl.tensor,  # [rows, heads, splits, VALUE_DIM], or the output [T, heads, VALUE_DIM] if not SPLIT
    sums_pointer: tl.tensor,  # [rows, heads, splits]: log2 of each part's sum of exponentials
    tables_pointer: tl.tensor,  # [B, longest]
    tokens_pointer: tl.tensor,  # [rows]: the row's index in q and in the output
    sequences_pointer: tl.tensor,  # [rows]: the row's index in tables
    lengths_pointer: tl.tensor,  # [rows]: the row's context
    weighs_pointer: tl.tensor,  # [T, heads]: the logarithm of the sum of exponentials, written if WEIGHED and not SPLIT
    scale: tl.tensor,
    value_scale: tl.tensor,  # scale of the pool's values
    splits: tl.tensor,
    table_stride: tl.tensor,
    q_stride: tl.tensor,
    q_head_stride: tl.tensor,
    k_stride: tl.tensor,
    k_head_stride: tl.tensor,
    v_stride: tl.tensor,
    v_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    SPLIT: tl.constexpr,
    WEIGHED: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,  # query heads of one program
    GROUP_BLOCKS: tl.constexpr,  # programs that share a key head
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,  # size of the part of DIM that does not fit into DIM_BLOCK
    VALUES_IN_KEYS: tl.constexpr,  # the first DIM_BLOCK of a key are the value
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row, kv_head, split = tl.program_id(0), tl.program_id(1) // GROUP_BLOCKS, tl.program_id(2)
    token = tl.load(tokens_pointer + row).to(tl.int64)
    sequence = tl.load(sequences_pointer + row).to(tl.int64)
    length = tl.load(lengths_pointer + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0)
    share = tl.cdiv(tl.cdiv(length - first, splits), BLOCK) * BLOCK
    start = first + split * share
    end = tl.minimum(start + share, length)

    members = tl.program_id(1) % GROUP_BLOCKS * GROUP_BLOCK + tl.arange(0, GROUP_BLOCK)
    heads = kv_head * GROUP + members
    dims = tl.arange(0, DIM_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    member_ok = members < GROUP
    q = tl.load(
        q_pointer + token * q_stride + heads[:, None] * q_head_stride + dims[None, :],
        mask=member_ok[:, None] & (dims < DIM)[None, :],
        other=0.0,
    )
    if PRECISION == "ieee":
        q = q.to(tl.float32)
    if REST_BLOCK > 0:
        rest_dims = DIM_BLOCK + tl.arange(0, REST_BLOCK)
        q_rest = tl.load(
            q_pointer + token * q_stride + heads[:, None] * q_head_stride + rest_dims[None, :],
            mask=member_ok[:, None] & (rest_dims < DIM)[None, :],
            other=0.0,
        ).to(q.dtype)
    table_pointer = tables_pointer + sequence * table_stride
    k_base = k_pointer + kv_head * k_head_stride + dims[:, None]
    v_base = v_pointer + kv_head * v_head_stride + value_dims[None, :]

    highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    gathered = tl.zeros([GROUP_BLOCK, VALUE_BLOCK], tl.float32)
    for block in range(start, end, BLOCK):
        columns = block + tl.arange(0, BLOCK)
        column_ok = columns < end
        slots = tl.load(table_pointer + columns, mask=column_ok, other=0).to(tl.int64)
        k = tl.load(k_base + slots[None, :] * k_stride, mask=column_ok[None, :] & (dims < DIM)[:, None], other=0.0)
        k = k.to(q.dtype)
        scores = tl.dot(q, k, input_precision=PRECISION)
        if REST_BLOCK > 0:
            k_rest = tl.load(
                k_pointer + kv_head * k_head_stride + rest_dims[:, None] + slots[None, :] * k_stride,
                mask=column_ok[None, :] & (rest_dims < DIM)[:, None],
                other=0.0,
            )
            scores += tl.dot(q_rest, k_rest.to(q.dtype), input_precision=PRECISION)
        logits = score_logits(scores, scale, SOFTCAP)
        logits = tl.where(column_ok[None, :], logits, float("-inf"))
        higher = tl.maximum(highest, tl.max(logits, 1))
        weights = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(highest - higher)
        if VALUES_IN_KEYS:
            v = tl.trans(k)
        else:
            v = tl.load(
                v_base + slots[:, None] * v_stride,
                mask=column_ok[:, None] & (value_dims < VALUE_DIM)[None, :],
                other=0.0,
            )
        gathered = gathered * shrink[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        highest = higher

    result = gathered / tl.where(total > 0, total, 1.0)[:, None] * value_scale
    out_mask = member_ok[:, None] & (value_dims < VALUE_DIM)[None, :]
    sums = tl.where(total > 0, highest + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
    every = tl.num_programs(1) // GROUP_BLOCKS * GROUP
    if SPLIT:
        part = (row.to(tl.int64) * every + heads) * splits + split
        tl.store(part_pointer + part[:, None] * VALUE_DIM + value_dims[None, :], result, mask=out_mask)
        tl.store(sums_pointer + part, sums, mask=member_ok)
    else:
        out = part_pointer + token * out_stride + heads[:, None] * out_head_stride + value_dims[None, :]
        tl.store(out, result.to(part_pointer.dtype.element_ty), mask=out_mask)
        if WEIGHED:
            tl.store(weighs_pointer + token * every + heads, sums * LN_2, mask=member_ok)


@triton.jit  # type: ignore[untyped-decorator]
def merge_kernel(
    part_pointer: tl.tensor,  # [rows, heads, SPLITS, VALUE_DIM]
    sums_pointer: tl.tensor,  # [rows, heads, SPLITS]
    out_pointer: tl.tensor,  # [T, heads, VALUE_DIM]
    tokens_pointer: tl.tensor,  # [rows]
    weighs_pointer: tl.tensor,  # [T, heads]: the logarithm of the sum of exponentials, written if WEIGHED
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    WEIGHED: tl.constexpr,
    SPLITS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(tokens_pointer + row).to(tl.int64)
    parts = (row.to(tl.int64) * tl.num_programs(1) + head) * SPLITS + tl.arange(0, SPLITS)
    value_dims = tl.arange(0, VALUE_BLOCK)
    value_ok = value_dims < VALUE_DIM
    sums = tl.load(sums_pointer + parts)
    highest = tl.max(sums, 0)
    weights = tl.exp2(sums - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weights, 0)
    part = tl.load(part_pointer + parts[:, None] * VALUE_DIM + value_dims[None, :], mask=value_ok[None, :], other=0.0)
    result = tl.sum(part * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    out = out_pointer + token * out_stride + head * out_head_stride + value_dims
    tl.store(out, result.to(out_pointer.dtype.element_ty), mask=value_ok)
    if WEIGHED:
        whole = tl.where(total > 0, highest + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(weighs_pointer + token * tl.num_programs(1) + head, whole * LN_2)
