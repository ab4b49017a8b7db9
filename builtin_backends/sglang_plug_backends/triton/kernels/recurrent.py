"""Kernels of recurrent layers: a program follows one sequence token by token, with a part of its state in registers.

Arithmetic is in float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .dependent_launch import await_inputs


@triton.jit  # type: ignore[untyped-decorator]
def conv_kernel(
    x_pointer: tl.tensor,  # [T, channels], rows x_stride apart
    weight_pointer: tl.tensor,  # [channels, WIDTH]
    bias_pointer: tl.tensor,  # [channels]
    states_pointer: tl.tensor,  # [rows, WIDTH - 1, channels]
    rows_pointer: tl.tensor,  # [sequences]
    starts_pointer: tl.tensor,  # [sequences + 1]
    out_pointer: tl.tensor,  # [T, channels]
    channels: tl.tensor,
    x_stride: tl.tensor,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Convolve ``TOKENS`` of one sequence; the states are unchanged."""
    await_inputs(AHEAD)
    sequence = tl.program_id(0)
    start = tl.load(starts_pointer + sequence)
    count = tl.load(starts_pointer + sequence + 1) - start
    own = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    tokens = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    fits = own < channels
    ok = (tokens < count)[:, None] & fits[None, :]
    state = states_pointer + tl.load(rows_pointer + sequence) * (WIDTH - 1) * channels
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    for tap in tl.static_range(WIDTH):
        position = tokens + (tap - WIDTH + 1)  # below 0: before the step
        new = ok & (position >= 0)[:, None]
        old = ok & (position < 0)[:, None]
        here = tl.load(x_pointer + (start + position)[:, None] * x_stride + own[None, :], mask=new, other=0.0)
        held = tl.load(state + (position + WIDTH - 1)[:, None] * channels + own[None, :], mask=old, other=0.0)
        weight = tl.load(weight_pointer + own * WIDTH + tap, mask=fits, other=0.0).to(tl.float32)
        total += (here.to(tl.float32) + held.to(tl.float32)) * weight[None, :]
    if HAS_BIAS:
        total += tl.load(bias_pointer + own, mask=fits, other=0.0).to(tl.float32)[None, :]
    target = out_pointer + (start + tokens)[:, None] * channels + own[None, :]
    tl.store(target, total.to(out_pointer.dtype.element_ty), mask=ok)


@triton.jit  # type: ignore[untyped-decorator]
def conv_state_kernel(
    x_pointer: tl.tensor,  # [T, channels], rows x_stride apart
    states_pointer: tl.tensor,  # [rows, BEFORE, channels]
    rows_pointer: tl.tensor,  # [sequences]
    starts_pointer: tl.tensor,  # [sequences + 1]
    channels: tl.tensor,
    x_stride: tl.tensor,
    BEFORE: tl.constexpr,
    BEFORE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Store the last ``BEFORE`` inputs of a sequence as its state."""
    await_inputs(AHEAD)
    sequence = tl.program_id(0)
    start = tl.load(starts_pointer + sequence)
    count = tl.load(starts_pointer + sequence + 1) - start
    own = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    taps = tl.arange(0, BEFORE_BLOCK)
    ok = (taps < BEFORE)[:, None] & (own < channels)[None, :]
    position = count - BEFORE + taps
    state = states_pointer + tl.load(rows_pointer + sequence) * BEFORE * channels
    new = ok & (position >= 0)[:, None]
    old = ok & (position < 0)[:, None]
    here = tl.load(x_pointer + (start + position)[:, None] * x_stride + own[None, :], mask=new, other=0.0)
    held = tl.load(state + (position + BEFORE)[:, None] * channels + own[None, :], mask=old, other=0.0)
    last = here.to(tl.float32) + held.to(tl.float32)  # one of them is 0
    tl.debug_barrier()  # all is read before anything is written
    tl.store(state + taps[:, None] * channels + own[None, :], last.to(states_pointer.dtype.element_ty), mask=ok)


@triton.jit  # type: ignore[untyped-decorator]
def recurrence_kernel(
    q_pointer: tl.tensor,  # [T, key_heads, DIM], tokens q_stride apart
    k_pointer: tl.tensor,  # [T, key_heads, DIM], tokens k_stride apart
    v_pointer: tl.tensor,  # [T, heads, VALUE_DIM], tokens v_stride apart
    decay_pointer: tl.tensor,  # [T, heads], or [T, heads, DIM]
    rate_pointer: tl.tensor,  # [T, heads]
    states_pointer: tl.tensor,  # [rows, heads, DIM, VALUE_DIM]
    rows_pointer: tl.tensor,  # [sequences]
    starts_pointer: tl.tensor,  # [sequences + 1]
    chosen_pointer: tl.tensor,  # [programs]: the chosen sequences, if not all
    out_pointer: tl.tensor,  # [T, heads, VALUE_DIM]
    heads: tl.tensor,
    group: tl.tensor,  # heads that share a key head
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    v_stride: tl.tensor,
    DIM: tl.constexpr,
    DIM_BLOCK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    DELTA: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    CHOSEN: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Update ``BLOCK`` columns of one head's state: see ``ssm.gated_delta_rule`` and ``ssm.linear_attention``."""
    await_inputs(AHEAD)
    sequence = tl.program_id(0).to(tl.int64)
    if CHOSEN:
        sequence = tl.load(chosen_pointer + sequence)
    head = tl.program_id(1)
    keys = tl.arange(0, DIM_BLOCK)
    values = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    key_ok, value_ok = keys < DIM, values < VALUE_DIM
    start = tl.load(starts_pointer + sequence)
    end = tl.load(starts_pointer + sequence + 1)
    row = tl.load(rows_pointer + sequence).to(tl.int64)
    state_pointer = (
        states_pointer + (row * heads + head) * DIM * VALUE_DIM + keys[:, None] * VALUE_DIM + values[None, :]
    )
    ok = key_ok[:, None] & value_ok[None, :]
    state = tl.load(state_pointer, mask=ok, other=0.0)
    own_key = (head // group) * DIM + keys
    for token in range(start, end):
        q = tl.load(q_pointer + token * q_stride + own_key, mask=key_ok, other=0.0).to(tl.float32)
        k = tl.load(k_pointer + token * k_stride + own_key, mask=key_ok, other=0.0).to(tl.float32)
        v = tl.load(v_pointer + token * v_stride + head * VALUE_DIM + values, mask=value_ok, other=0.0).to(tl.float32)
        if BY_CHANNEL:
            faded = tl.load(decay_pointer + (token * heads + head) * DIM + keys, mask=key_ok, other=0.0)
            state = state * tl.exp(faded)[:, None]
        else:
            state = state * tl.exp(tl.load(decay_pointer + token * heads + head))
        if DELTA:
            q = q / tl.sqrt_rn((tl.sum(q * q, 0) + 1e-6) * DIM)
            k = k / tl.sqrt_rn(tl.sum(k * k, 0) + 1e-6)
            v = (v - tl.sum(k[:, None] * state, 0)) * tl.load(rate_pointer + token * heads + head)
        state += k[:, None] * v[None, :]
        out = tl.sum(q[:, None] * state, 0)
        target = out_pointer + (token * heads + head) * VALUE_DIM + values
        tl.store(target, out.to(out_pointer.dtype.element_ty), mask=value_ok)
    tl.store(state_pointer, state, mask=ok)


@triton.jit  # type: ignore[untyped-decorator]
def selective_scan_kernel(
    x_pointer: tl.tensor,  # [T, channels], tokens x_stride apart
    step_pointer: tl.tensor,  # [T, channels]
    rates_pointer: tl.tensor,  # [channels, SIZE]
    b_pointer: tl.tensor,  # [T, SIZE], tokens b_stride apart
    c_pointer: tl.tensor,  # [T, SIZE], tokens c_stride apart
    states_pointer: tl.tensor,  # [rows, channels, SIZE]
    rows_pointer: tl.tensor,  # [sequences]
    starts_pointer: tl.tensor,  # [sequences + 1]
    out_pointer: tl.tensor,  # [T, channels]
    channels: tl.tensor,
    x_stride: tl.tensor,
    b_stride: tl.tensor,
    c_stride: tl.tensor,
    SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """Scan ``BLOCK`` channels: see ``ssm.selective_scan``."""
    await_inputs(AHEAD)
    sequence = tl.program_id(0)
    own = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offsets = tl.arange(0, SIZE_BLOCK)
    fits, size_ok = own < channels, offsets < SIZE
    ok = fits[:, None] & size_ok[None, :]
    start = tl.load(starts_pointer + sequence)
    end = tl.load(starts_pointer + sequence + 1)
    row = tl.load(rows_pointer + sequence).to(tl.int64)
    state_pointer = states_pointer + (row * channels + own[:, None]) * SIZE + offsets[None, :]
    state = tl.load(state_pointer, mask=ok, other=0.0)
    rates = tl.load(rates_pointer + own[:, None] * SIZE + offsets[None, :], mask=ok, other=0.0)
    for token in range(start, end):
        x = tl.load(x_pointer + token * x_stride + own, mask=fits, other=0.0).to(tl.float32)
        step = tl.load(step_pointer + token * channels + own, mask=fits, other=0.0)
        b = tl.load(b_pointer + token * b_stride + offsets, mask=size_ok, other=0.0).to(tl.float32)
        c = tl.load(c_pointer + token * c_stride + offsets, mask=size_ok, other=0.0).to(tl.float32)
        state = state * tl.exp(step[:, None] * rates) + (step * x)[:, None] * b[None, :]
        out = tl.sum(state * c[None, :], 1)
        tl.store(out_pointer + token * channels + own, out.to(out_pointer.dtype.element_ty), mask=fits)
    tl.store(state_pointer, state, mask=ok)
