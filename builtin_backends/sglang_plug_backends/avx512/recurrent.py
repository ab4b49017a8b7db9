"""Recurrent layers computed by the compiled library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from sglang_plug import Kernels, SequenceSpans

from .calls import ConvolutionCall, RecurrenceCall, SelectiveScanCall, dense
from .library import load

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
LONGEST_TAPS, LONGEST_KEY, LARGEST_STATE = 8, 512, 16
"""Limits of ``source/recurrent.cpp``."""
NUMBERS = (torch.bfloat16, torch.float32)


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor | None, states: Tensor, runs: SequenceSpans) -> Tensor:
    """Compute the definition with a single rounding."""
    inputs = (x, weight, states) if bias is None else (x, weight, states, bias)
    known = all(tensor.dtype == torch.bfloat16 for tensor in inputs) and weight.shape[1] <= LONGEST_TAPS
    if not known or x.stride(-1) != 1 or not states.is_contiguous():
        return DEFINITIONS.causal_conv(x, weight, bias, states, runs)
    weight, bias = weight.contiguous(), None if bias is None else bias.contiguous()
    out = torch.empty((len(x), x.shape[1]), dtype=x.dtype)
    call = ConvolutionCall(
        rows=runs.rows.data_ptr(),
        starts=runs.starts.data_ptr(),
        sequences=len(runs.lengths),
        channels=x.shape[1],
        width=weight.shape[1],
        x_stride=x.stride(0),
        x=x.data_ptr(),
        weight=weight.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        states=states.data_ptr(),
        out=out.data_ptr(),
    )
    load().causal_conv(ctypes.addressof(call))
    return out


def linear_attention(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor, runs: SequenceSpans) -> Tensor:
    """Compute the definition token by token with a single rounding."""
    if not _fits(q, k, v, decay, states):
        return DEFINITIONS.linear_attention(q, k, v, decay, states, runs)
    return _recur(q, k, v, decay, None, states, runs)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, states: Tensor, runs: SequenceSpans
) -> Tensor:
    """Compute the definition token by token with a single rounding."""
    if not _fits(q, k, v, decay, states):
        return DEFINITIONS.gated_delta_rule(q, k, v, decay, beta, states, runs)
    return _recur(q, k, v, decay, beta.float().contiguous(), states, runs)


def selective_scan(
    x: Tensor, step: Tensor, rates: Tensor, b: Tensor, c: Tensor, states: Tensor, runs: SequenceSpans
) -> Tensor:
    """Compute the definition token by token with a single rounding."""
    wide = step.dtype == rates.dtype == states.dtype == torch.float32 and states.is_contiguous()
    known = all(tensor.dtype in NUMBERS and tensor.stride(-1) == 1 for tensor in (x, b, c))
    if not wide or not known or rates.shape[1] > LARGEST_STATE:
        return DEFINITIONS.selective_scan(x, step, rates, b, c, states, runs)
    step, rates = step.contiguous(), rates.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    call = SelectiveScanCall(
        rows=runs.rows.data_ptr(),
        starts=runs.starts.data_ptr(),
        sequences=len(runs.lengths),
        channels=x.shape[1],
        size=rates.shape[1],
        x=x.data_ptr(),
        b=b.data_ptr(),
        c=c.data_ptr(),
        x_stride=x.stride(0),
        b_stride=b.stride(0),
        c_stride=c.stride(0),
        wide_x=x.dtype == torch.float32,
        wide_b=b.dtype == torch.float32,
        wide_c=c.dtype == torch.float32,
        step=step.data_ptr(),
        rates=rates.data_ptr(),
        states=states.data_ptr(),
        out=out.data_ptr(),
    )
    load().selective_scan(ctypes.addressof(call))
    return out


def _fits(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, states: Tensor) -> bool:
    known = q.dtype in NUMBERS and k.dtype == q.dtype and v.dtype in NUMBERS and states.is_contiguous()
    return known and decay.dtype == states.dtype == torch.float32 and decay.dim() == 2 and q.shape[-1] <= LONGEST_KEY


def _recur(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor | None, states: Tensor, runs: SequenceSpans
) -> Tensor:
    q, k, v, decay = dense(q), dense(k), dense(v), decay.contiguous()
    out = torch.empty(v.shape, dtype=v.dtype)
    call = RecurrenceCall(
        rows=runs.rows.data_ptr(),
        starts=runs.starts.data_ptr(),
        sequences=len(runs.lengths),
        key_heads=k.shape[1],
        heads=v.shape[1],
        dim=k.shape[2],
        value_dim=v.shape[2],
        q=q.data_ptr(),
        k=k.data_ptr(),
        v=v.data_ptr(),
        q_stride=q.stride(0),
        k_stride=k.stride(0),
        v_stride=v.stride(0),
        wide_keys=q.dtype == torch.float32,
        wide_values=v.dtype == torch.float32,
        decay=decay.data_ptr(),
        rate=None if rate is None else rate.data_ptr(),
        states=states.data_ptr(),
        out=out.data_ptr(),
    )
    load().recurrence(ctypes.addressof(call))
    return out
