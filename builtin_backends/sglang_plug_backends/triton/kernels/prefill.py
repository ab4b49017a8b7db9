"""Prefill: many new tokens of a sequence attend to its context, block of queries by block of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from .decode import LN_2, score_logits
from .dependent_launch import await_inputs


@triton.jit(do_not_specialize=["table_stride"])  # type: ignore[untyped-decorator]
def prefill_kernel(
    q_pointer: tl.tensor,  # [T, heads, DIM]
    k_pointer: tl.tensor,  # PAGED: [slots, kv_heads, DIM], else [T, kv_heads, DIM]
    v_pointer: tl.tensor,  # likewise, VALUE_DIM
    out_pointer: tl.tensor,  # [T, heads, VALUE_DIM]
    tables_pointer: tl.tensor,  # [B, longest], not read unless PAGED
    block_sequences_pointer: tl.tensor,  # [blocks]: the sequence that a block of queries belongs to
    block_starts_pointer: tl.tensor,  # [blocks]: the block's first query within its sequence
    query_starts_pointer: tl.tensor,  # [B]: the sequence's first token in q
    query_lengths_pointer: tl.tensor,  # [B]
    lengths_pointer: tl.tensor,  # [B]: whole contexts
    weighs_pointer: tl.tensor,  # [T, heads]: the logarithm of the sum of exponentials, written if WEIGHED
    scale: tl.tensor,
    value_scale: tl.tensor,  # scale of the pool's values
    table_stride: tl.tensor,
    q_stride: tl.tensor,
    q_head_stride: tl.tensor,
    k_stride: tl.tensor,
    k_head_stride: tl.tensor,
    v_stride: tl.tensor,
    v_head_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head_stride: tl.tensor,
    PAGED: tl.constexpr,
    WEIGHED: tl.constexpr,
    CAUSAL: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    REST_BLOCK: tl.constexpr,  # size of the part of DIM that does not fit into DIM_BLOCK
    VALUES_IN_KEYS: tl.constexpr,  # the first DIM_BLOCK of a key are the value
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    program, head = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(block_sequences_pointer + program).to(tl.int64)
    first_query = tl.load(block_starts_pointer + program)
    query_start = tl.load(query_starts_pointer + sequence).to(tl.int64)
    query_length = tl.load(query_lengths_pointer + sequence)
    length = tl.load(lengths_pointer + sequence)
    earlier = length - query_length
    kv_head = head // GROUP

    queries = first_query + tl.arange(0, QUERY_BLOCK)
    query_ok = queries < query_length
    positions = earlier + queries
    dims = tl.arange(0, DIM_BLOCK)
    value_dims = tl.arange(0, VALUE_BLOCK)
    tokens = query_start + queries
    q = tl.load(
        q_pointer + tokens[:, None] * q_stride + head * q_head_stride + dims[None, :],
        mask=query_ok[:, None] & (dims < DIM)[None, :],
        other=0.0,
    )
    if PRECISION == "ieee":
        q = q.to(tl.float32)
    if REST_BLOCK > 0:
        rest_dims = DIM_BLOCK + tl.arange(0, REST_BLOCK)
        q_rest = tl.load(
            q_pointer + tokens[:, None] * q_stride + head * q_head_stride + rest_dims[None, :],
            mask=query_ok[:, None] & (rest_dims < DIM)[None, :],
            other=0.0,
        ).to(q.dtype)
    start, end = 0, length
    if CAUSAL:
        end = tl.minimum(length, earlier + first_query + QUERY_BLOCK)
    if WINDOW > 0:
        start = tl.maximum(earlier + first_query - WINDOW + 1, 0)
    k_base = k_pointer + kv_head * k_head_stride + dims[:, None]
    v_base = v_pointer + kv_head * v_head_stride + value_dims[None, :]

    highest = tl.full([QUERY_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_BLOCK], tl.float32)
    gathered = tl.zeros([QUERY_BLOCK, VALUE_BLOCK], tl.float32)
    for block in range(start, end, BLOCK):
        columns = block + tl.arange(0, BLOCK)
        column_ok = columns < end
        if PAGED:
            rows = tl.load(tables_pointer + sequence * table_stride + columns, mask=column_ok, other=0).to(tl.int64)
        else:
            rows = query_start + columns
        k = tl.load(k_base + rows[None, :] * k_stride, mask=column_ok[None, :] & (dims < DIM)[:, None], other=0.0)
        k = k.to(q.dtype)
        scores = tl.dot(q, k, input_precision=PRECISION)
        if REST_BLOCK > 0:
            k_rest = tl.load(
                k_pointer + kv_head * k_head_stride + rest_dims[:, None] + rows[None, :] * k_stride,
                mask=column_ok[None, :] & (rest_dims < DIM)[:, None],
                other=0.0,
            )
            scores += tl.dot(q_rest, k_rest.to(q.dtype), input_precision=PRECISION)
        logits = score_logits(scores, scale, SOFTCAP)
        visible = column_ok[None, :]
        if CAUSAL:
            visible = visible & (columns[None, :] <= positions[:, None])
        if WINDOW > 0:
            visible = visible & (columns[None, :] > positions[:, None] - WINDOW)
        logits = tl.where(visible, logits, float("-inf"))
        higher = tl.maximum(highest, tl.max(logits, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no visible key yet: the window starts later
        weights = tl.exp2(logits - base[:, None])
        shrink = tl.exp2(highest - base)
        if VALUES_IN_KEYS:
            v = tl.trans(k)
        else:
            v = tl.load(
                v_base + rows[:, None] * v_stride,
                mask=column_ok[:, None] & (value_dims < VALUE_DIM)[None, :],
                other=0.0,
            )
        gathered = gathered * shrink[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision=PRECISION)
        total = total * shrink + tl.sum(weights, 1)
        highest = higher

    result = gathered / tl.where(total > 0, total, 1.0)[:, None] * value_scale
    out = out_pointer + tokens[:, None] * out_stride + head * out_head_stride + value_dims[None, :]
    tl.store(out, result.to(out_pointer.dtype.element_ty), mask=query_ok[:, None] & (value_dims < VALUE_DIM)[None, :])
    if WEIGHED:
        whole = tl.where(total > 0, highest + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(weighs_pointer + tokens * tl.num_programs(1) + head, whole * LN_2, mask=query_ok)
