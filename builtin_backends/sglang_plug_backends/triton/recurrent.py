"""Recurrent layers: one launch for all sequences of a step, and chunks for long prompts.

Long prompts use the definitions, where matrix products are worth more than fewer launches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import Kernels, SequenceSpans, upload
from sglang_plug_backends.triton.kernels.recurrent import (
    conv_kernel,
    conv_state_kernel,
    recurrence_kernel,
    selective_scan_kernel,
)

from .launch import launch_options, power_of_two, runs

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
CHANNELS_BLOCK, SCAN_BLOCK, VALUE_BLOCK = 256, 64, 32
TOKENS_BLOCK = 16
LONG = 64
"""Minimum new tokens of a sequence for computing in chunks."""
WIDEST_KEY = 256


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, step: SequenceSpans, *, overlap: bool = False
) -> Tensor:
    """Compute the definition."""
    if not runs(x, weight, states) or x.stride(-1) != 1 or not weight.is_contiguous() or weight.shape[1] < 2:
        return DEFINITIONS.causal_conv(x, weight, bias, states, step)
    channels, width = weight.shape
    out = torch.empty((len(x), channels), dtype=x.dtype, device=x.device)
    tokens = min(TOKENS_BLOCK, power_of_two(max(step.lengths)))
    sequences, blocks = len(step.lengths), -(-channels // CHANNELS_BLOCK)
    shared = {"BLOCK": CHANNELS_BLOCK, **launch_options(x.device, overlap)}
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        conv_kernel[(sequences, -(-max(step.lengths) // tokens), blocks)](
            x,
            weight,
            x if bias is None else bias,
            states,
            step.rows,
            step.starts,
            out,
            channels,
            x.stride(0),
            WIDTH=width,
            TOKENS=tokens,
            HAS_BIAS=bias is not None,
            **shared,
        )
        conv_state_kernel[(sequences, blocks)](
            x,
            states,
            step.rows,
            step.starts,
            channels,
            x.stride(0),
            BEFORE=width - 1,
            BEFORE_BLOCK=power_of_two(width - 1),
            **shared,
        )
    return out


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor, step: SequenceSpans, *, overlap: bool = False
) -> Tensor:
    """Compute the definition."""
    if not _fits(q, k, v, decay, states) or decay.dim() != 2:
        return DEFINITIONS.linear_attention(q, k, v, decay, states, step)
    return _recur(q, k, v, decay, None, states, step, overlap)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor,
    step: SequenceSpans,
    *,
    overlap: bool = False,
) -> Tensor:
    """Compute the definition."""
    if not _fits(q, k, v, decay, states):
        return DEFINITIONS.gated_delta_rule(q, k, v, decay, beta, states, step)
    return _recur(q, k, v, decay, beta, states, step, overlap)


def selective_scan(
    x: Tensor,
    step: Tensor,
    rates: Tensor,
    b: Tensor,
    c: Tensor,
    states: Tensor,
    of: SequenceSpans,
    *,
    overlap: bool = False,
) -> Tensor:
    """Compute the definition token by token, whatever a prompt's length."""
    wide = step.dtype == rates.dtype == states.dtype == torch.float32
    dense = x.stride(-1) == b.stride(-1) == c.stride(-1) == 1 and rates.is_contiguous()
    if not runs(x, step, states) or not wide or not dense:
        return DEFINITIONS.selective_scan(x, step, rates, b, c, states, of)
    channels, size = rates.shape
    out = torch.empty((len(x), channels), dtype=x.dtype, device=x.device)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        selective_scan_kernel[(len(of.lengths), -(-channels // SCAN_BLOCK))](
            x,
            step.contiguous(),
            rates,
            b,
            c,
            states,
            of.rows,
            of.starts,
            out,
            channels,
            x.stride(0),
            b.stride(0),
            c.stride(0),
            SIZE=size,
            SIZE_BLOCK=power_of_two(size),
            BLOCK=SCAN_BLOCK,
            **launch_options(x.device, overlap),
        )
    return out


def _fits(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor) -> bool:
    wide = decay.dtype == states.dtype == torch.float32
    return runs(q, k, v, states) and wide and q.shape[-1] <= WIDEST_KEY


def _recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rate: Tensor | None,
    states: Tensor,
    step: SequenceSpans,
    overlap: bool,
) -> Tensor:
    q, k, v, decay = _dense(q), _dense(k), _dense(v), decay.contiguous()
    rate = None if rate is None else rate.float().contiguous()
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    short = [index for index, length in enumerate(step.lengths) if length < LONG]
    if short:
        _short(q, k, v, decay, rate, states, step, short, out, overlap)
    end = 0
    for index, length in enumerate(step.lengths):
        start, end = end, end + length
        if length >= LONG:
            own, part = _alone(step, index), slice(start, end)
            inputs = (q[part], k[part], v[part], decay[part])
            if rate is None:
                out[part] = DEFINITIONS.linear_attention(*inputs, states, own)
            else:
                out[part] = DEFINITIONS.gated_delta_rule(*inputs, rate[part], states, own)
    return out


def _alone(step: SequenceSpans, index: int) -> SequenceSpans:
    """Return the runs of only the sequence at ``index``."""
    starts = step.starts[index : index + 2]
    return SequenceSpans(step.rows[index : index + 1], [step.lengths[index]], starts - starts[:1])


def _short(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    rate: Tensor | None,
    states: Tensor,
    step: SequenceSpans,
    indices: list[int],
    out: Tensor,
    overlap: bool,
) -> None:
    """Compute the runs of the sequences at ``indices``: outputs are written to ``out``, states in place."""
    heads, dim, value_dim = states.shape[1:]
    chosen = len(indices) < len(step.lengths)
    block = min(VALUE_BLOCK, power_of_two(value_dim))
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
        recurrence_kernel[(len(indices), heads, -(-value_dim // block))](
            q,
            k,
            v,
            decay,
            decay if rate is None else rate,
            states,
            step.rows,
            step.starts,
            upload(indices, torch.int64, q.device) if chosen else step.rows,
            out,
            heads,
            heads // k.shape[1],
            q.stride(0),
            k.stride(0),
            v.stride(0),
            DIM=dim,
            DIM_BLOCK=power_of_two(dim),
            VALUE_DIM=value_dim,
            BLOCK=block,
            DELTA=rate is not None,
            BY_CHANNEL=decay.dim() == 3,
            CHOSEN=chosen,
            **launch_options(q.device, overlap),
        )


def _dense(x: Tensor) -> Tensor:
    """Return ``x`` with the heads of a token contiguous; tokens may have any stride."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
