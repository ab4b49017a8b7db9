"""Rotary embedding of queries and keys fused with storing keys and values. Arithmetic is in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs


@triton.jit  # type: ignore[untyped-decorator]
def pooled(x: tl.tensor, inverse: tl.tensor, MAX_VALUE: tl.constexpr) -> tl.tensor:
    """Round ``x`` as a pool of another dtype does, whose largest number is ``MAX_VALUE``; 0: the same dtype."""
    if MAX_VALUE > 0:
        x = x.to(tl.float32) * inverse
        x = tl.maximum(x, -MAX_VALUE, propagate_nan=tl.PropagateNan.ALL)
        x = tl.minimum(x, MAX_VALUE, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["k_inverse", "v_inverse"]
)
def rope_store_kernel(
    q_pointer: tl.tensor,  # [T, heads, 2 * HALF + REST]
    k_pointer: tl.tensor,  # [T, kv_heads, 2 * HALF + REST]
    v_pointer: tl.tensor,  # [T, kv_heads, VALUE_DIM]
    cos_pointer: tl.tensor,  # [T, 2 * HALF]
    sin_pointer: tl.tensor,  # [T, 2 * HALF]
    slots_pointer: tl.tensor,  # [T]
    q_out_pointer: tl.tensor,  # as q, dense
    k_out_pointer: tl.tensor,  # as k, dense
    pool_k_pointer: tl.tensor,  # [slots, kv_heads, 2 * HALF + REST]
    pool_v_pointer: tl.tensor,  # [slots, kv_heads, VALUE_DIM]
    k_inverse: tl.tensor,  # 1 / scale of the pool's keys
    v_inverse: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    angle_stride: tl.tensor,
    q_stride: tl.tensor,
    q_head_stride: tl.tensor,
    k_stride: tl.tensor,
    k_head_stride: tl.tensor,
    v_stride: tl.tensor,
    v_head_stride: tl.tensor,
    pool_k_stride: tl.tensor,
    pool_k_head_stride: tl.tensor,
    pool_v_stride: tl.tensor,
    pool_v_head_stride: tl.tensor,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    QUERY_BLOCKS: tl.constexpr,  # programs of a token that rotate queries; the others have keys and values
    MAX_VALUE: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    token, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = tl.arange(0, HALF_BLOCK)
    offset_ok = offsets < HALF
    kept = 2 * HALF + tl.arange(0, REST_BLOCK)
    dim = 2 * HALF + REST
    kind = q_out_pointer.dtype.element_ty  # of k, too
    pool_kind = pool_k_pointer.dtype.element_ty
    cos = tl.load(cos_pointer + token * angle_stride + offsets, mask=offset_ok, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_pointer + token * angle_stride + offsets, mask=offset_ok, other=0.0).to(tl.float32)[None, :]
    if block < QUERY_BLOCKS:
        own = block * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
        ok = (own < heads)[:, None] & offset_ok[None, :]
        source = q_pointer + token * q_stride + own[:, None] * q_head_stride
        target = q_out_pointer + (token * heads + own[:, None]) * dim
        left = tl.load(source + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
        right = tl.load(source + HALF + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
        tl.store(target + offsets[None, :], (left * cos - right * sin).to(kind), mask=ok)
        tl.store(target + HALF + offsets[None, :], (right * cos + left * sin).to(kind), mask=ok)
        if REST > 0:
            rest_ok = (own < heads)[:, None] & (kept < dim)[None, :]
            tl.store(target + kept[None, :], tl.load(source + kept[None, :], mask=rest_ok, other=0.0), mask=rest_ok)
    else:
        own = (block - QUERY_BLOCKS) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
        ok = (own < kv_heads)[:, None] & offset_ok[None, :]
        slot = tl.load(slots_pointer + token).to(tl.int64)
        source = k_pointer + token * k_stride + own[:, None] * k_head_stride
        target = k_out_pointer + (token * kv_heads + own[:, None]) * dim
        pool = pool_k_pointer + slot * pool_k_stride + own[:, None] * pool_k_head_stride
        left = tl.load(source + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
        right = tl.load(source + HALF + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
        turned_left, turned_right = (left * cos - right * sin).to(kind), (right * cos + left * sin).to(kind)
        tl.store(target + offsets[None, :], turned_left, mask=ok)
        tl.store(target + HALF + offsets[None, :], turned_right, mask=ok)
        tl.store(pool + offsets[None, :], pooled(turned_left, k_inverse, MAX_VALUE).to(pool_kind), mask=ok)
        tl.store(pool + HALF + offsets[None, :], pooled(turned_right, k_inverse, MAX_VALUE).to(pool_kind), mask=ok)
        if REST > 0:
            rest_ok = (own < kv_heads)[:, None] & (kept < dim)[None, :]
            unrotated = tl.load(source + kept[None, :], mask=rest_ok, other=0.0)
            tl.store(target + kept[None, :], unrotated, mask=rest_ok)
            tl.store(pool + kept[None, :], pooled(unrotated, k_inverse, MAX_VALUE).to(pool_kind), mask=rest_ok)
        values = tl.arange(0, VALUE_BLOCK)
        value_ok = (own < kv_heads)[:, None] & (values < VALUE_DIM)[None, :]
        v = tl.load(
            v_pointer + token * v_stride + own[:, None] * v_head_stride + values[None, :], mask=value_ok, other=0.0
        )
        pool_v = pool_v_pointer + slot * pool_v_stride + own[:, None] * pool_v_head_stride
        tl.store(pool_v + values[None, :], pooled(v, v_inverse, MAX_VALUE).to(pool_kind), mask=value_ok)
