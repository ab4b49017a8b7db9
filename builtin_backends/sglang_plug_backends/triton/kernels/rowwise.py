"""Row-wise kernels: normalisation, gated activation, rotary embedding. Arithmetic is in float32."""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import ask_for_vector, await_inputs


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["eps"]
)
def rms_norm_kernel(
    x_pointer: tl.tensor,  # [outer, inner, SIZE]
    weight_pointer: tl.tensor,  # [SIZE]
    out_pointer: tl.tensor,  # [outer * inner, SIZE]
    inner: tl.tensor,
    outer_stride: tl.tensor,
    inner_stride: tl.tensor,
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    if AHEAD:
        ask_for_vector(weight_pointer, SIZE, BLOCK)
    await_inputs(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    ok = offsets < SIZE
    start = (row // inner) * outer_stride + (row % inner) * inner_stride
    x = tl.load(x_pointer + start + offsets, mask=ok, other=0.0)
    weight = tl.load(weight_pointer + offsets, mask=ok, other=0.0)
    x = x.to(tl.float32)
    x = x * (1 / tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps))
    if weight_pointer.dtype.element_ty != tl.float32:
        x = x.to(x_pointer.dtype.element_ty).to(tl.float32)
    out = weight.to(tl.float32) * x
    tl.store(out_pointer + row * SIZE + offsets, out.to(out_pointer.dtype.element_ty), mask=ok)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["eps"]
)
def add_rms_norm_kernel(
    x_pointer: tl.tensor,  # [rows, SIZE]; becomes the norm
    residual_pointer: tl.tensor,  # [rows, SIZE]; becomes the sum
    weight_pointer: tl.tensor,  # [SIZE]
    eps: tl.tensor,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    if AHEAD:
        ask_for_vector(weight_pointer, SIZE, BLOCK)
    await_inputs(AHEAD)
    start = tl.program_id(0).to(tl.int64) * SIZE
    offsets = tl.arange(0, BLOCK)
    ok = offsets < SIZE
    x = tl.load(x_pointer + start + offsets, mask=ok, other=0.0)
    residual = tl.load(residual_pointer + start + offsets, mask=ok, other=0.0)
    weight = tl.load(weight_pointer + offsets, mask=ok, other=0.0)
    x = x.to(tl.float32) + residual.to(tl.float32)
    total = x.to(residual_pointer.dtype.element_ty)
    tl.store(residual_pointer + start + offsets, total, mask=ok)
    x = total.to(tl.float32)
    x = x * (1 / tl.sqrt_rn(tl.sum(x * x, 0) / SIZE + eps))
    if weight_pointer.dtype.element_ty != tl.float32:
        x = x.to(x_pointer.dtype.element_ty).to(tl.float32)
    out = weight.to(tl.float32) * x
    tl.store(x_pointer + start + offsets, out.to(x_pointer.dtype.element_ty), mask=ok)


@triton.jit  # type: ignore[untyped-decorator]
def silu_mul_kernel(
    pair_pointer: tl.tensor,  # [rows, 2 * width]
    out_pointer: tl.tensor,  # [rows, width]
    width: tl.tensor,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = offsets < width
    gate = tl.load(pair_pointer + row * 2 * width + offsets, mask=ok, other=0.0).to(tl.float32)
    up = tl.load(pair_pointer + row * 2 * width + width + offsets, mask=ok, other=0.0).to(tl.float32)
    out = gate * tl.sigmoid(gate) * up
    tl.store(out_pointer + row * width + offsets, out.to(out_pointer.dtype.element_ty), mask=ok)


@triton.jit  # type: ignore[untyped-decorator]
def rope_kernel(
    x_pointer: tl.tensor,  # [T, heads, HALF * 2 + REST]
    cos_pointer: tl.tensor,  # [T, HALF * 2]
    sin_pointer: tl.tensor,  # [T, HALF * 2]
    out_pointer: tl.tensor,  # [T, heads, HALF * 2 + REST]
    heads: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    angle_stride: tl.tensor,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    REST_BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    await_inputs(AHEAD)
    token = tl.program_id(0).to(tl.int64)
    own = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    offsets = tl.arange(0, HALF_BLOCK)
    ok = (own < heads)[:, None] & (offsets < HALF)[None, :]
    source = x_pointer + token * token_stride + own[:, None] * head_stride
    target = out_pointer + (token * heads + own[:, None]) * (2 * HALF + REST)
    cos = tl.load(cos_pointer + token * angle_stride + offsets, mask=offsets < HALF, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_pointer + token * angle_stride + offsets, mask=offsets < HALF, other=0.0).to(tl.float32)[None, :]
    left = tl.load(source + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
    right = tl.load(source + HALF + offsets[None, :], mask=ok, other=0.0).to(tl.float32)
    kind = out_pointer.dtype.element_ty
    tl.store(target + offsets[None, :], (left * cos - right * sin).to(kind), mask=ok)
    tl.store(target + HALF + offsets[None, :], (right * cos + left * sin).to(kind), mask=ok)
    if REST > 0:
        kept = 2 * HALF + tl.arange(0, REST_BLOCK)
        kept_ok = (own < heads)[:, None] & (kept < 2 * HALF + REST)[None, :]
        unrotated = tl.load(source + kept[None, :], mask=kept_ok, other=0.0)
        tl.store(target + kept[None, :], unrotated.to(kind), mask=kept_ok)
