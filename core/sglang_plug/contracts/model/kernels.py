"""The operations a kernel plugin may replace, and their definitions in torch.

A kernel set is a ``Kernels`` with some fields replaced; the other fields stay the torch reference. Layers bind the
functions once, when they are built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.ops.lora import AddLowRank
from sglang_plug.ops.quantized_weight import QuantizedWeight
from sglang_plug.ops.sampling import SamplingOptions, mask_logits, sample_tokens
from sglang_plug.ops.ssm import causal_conv, gated_delta_rule, linear_attention, selective_scan

from .recurrent_state import SequenceSpans

if TYPE_CHECKING:
    from .batch import KVPool

LinearFunction = Callable[[Tensor], Tensor]
"""A function from ``[T, in]`` to ``[T, out]``."""
RopeStore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, "KVPool", int, Tensor], tuple[Tensor, Tensor]]
"""The type of ``rope_store``."""
BiasedMoe = Callable[
    [Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor
]
"""The type of ``biased_moe``."""


def pack_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """Prepare ``weight`` ``[out, in]`` once, after loading, for many multiplications ``x @ weight.T + bias``.

    A replacement may keep a copy in another layout; the layer then drops the original.
    """
    return lambda x: F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``weight * x / sqrt(mean(x**2) + eps)`` over the last dimension, computed in float32, in ``x``'s dtype.

    A ``weight`` in float32 multiplies before the rounding to a narrower ``x``'s dtype, any other after it.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * wide if weight.dtype == torch.float32 else weight * wide.to(x.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(x + residual), x + residual)``; may write to either input."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` ``[T, width]`` of ``[T, 2 * width]``, whose first half is the gate."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[T, heads, dim]`` by ``cos``/``sin`` ``[T, dim]``, in half-split order.

    Both tables hold their ``dim / 2`` angles twice. If they are narrower than ``x``, the other columns stay as they
    are.
    """
    width = cos.shape[-1]
    rotated, unrotated = x[..., :width], x[..., width:]
    left, right = rotated.chunk(2, dim=-1)
    rotated = rotated * cos[:, None] + torch.cat((-right, left), dim=-1) * sin[:, None]
    return torch.cat((rotated, unrotated), dim=-1) if unrotated.shape[-1] else rotated


def rope_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: KVPool, layer: int, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotate ``q`` and ``k`` like ``apply_rope``, store ``k`` and ``v`` in the pool, and return the rotated pair.

    Args:
        q: ``[T, heads, dim]``.
        k: ``[T, kv_heads, dim]``.
        v: ``[T, kv_heads, value_dim]``; shares no memory with ``k``.
        cos: ``[T, width]``.
        sin: ``[T, width]``.
        kv: keys and values of all layers, in any dtype: ``KVPool.store`` says how they are converted.
        layer: the index of the layer in the pool.
        slots: ``[T]`` int64, the slots that the step's keys and values are written to.
    """
    q, k = apply_rope(q, cos, sin).to(q.dtype), apply_rope(k, cos, sin).to(k.dtype)
    kv.store(layer, k, v, slots)
    return q, k


def moe(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted sum of the outputs of its experts, added in float32, in ``x``'s dtype.

    Expert ``e`` is ``down[e] @ (silu(gate) * up)`` with ``gate, up = gate_up[e] @ x``. Tokens are gathered by
    expert, and each expert that is chosen at all is read once.

    Args:
        x: ``[T, hidden]``.
        gate_up: ``[E, 2 * width, hidden]``; the first ``width`` rows of an expert are its gate.
        down: ``[E, hidden, width]``.
        experts: ``[T, k]`` int64, the experts that each token is routed to.
        weights: ``[T, k]``, the weight of each of these experts.
    """
    return biased_moe(x, gate_up, down, None, None, experts, weights, silu_mul)


def biased_moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    gate_up_bias: Tensor | None,
    down_bias: Tensor | None,
    experts: Tensor,
    weights: Tensor,
    gated: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the same as ``moe``, for experts with biases or another activation.

    The biases are ``[E, 2 * width]`` and ``[E, hidden]``; either may be ``None``. ``gated`` replaces
    ``silu(gate) * up`` and is applied row by row to ``[N, 2 * width]``, or to ``[N, width]`` for experts without gates.
    """

    def expert(number: int, rows: Tensor) -> Tensor:
        between = gated(F.linear(rows, gate_up[number], None if gate_up_bias is None else gate_up_bias[number]))
        return F.linear(between, down[number], None if down_bias is None else down_bias[number])

    return each_expert(x, len(gate_up), expert, experts, weights)


def each_expert(
    x: Tensor, count: int, expert: Callable[[int, Tensor], Tensor], experts: Tensor, weights: Tensor
) -> Tensor:
    """Return the same as ``moe``, computing one of ``count`` experts after the other.

    ``expert`` receives the number of an expert and its rows of ``x``, and returns the outputs.
    """
    chosen = experts.flatten()
    order = chosen.argsort(stable=True)
    tokens, factors = order // experts.shape[1], weights.flatten()[order, None].float()
    total = torch.zeros_like(x, dtype=torch.float32)
    start = 0
    for number, routed in enumerate(chosen.bincount(minlength=count).tolist()):
        if routed == 0:
            continue
        rows, factor = tokens[start : start + routed], factors[start : start + routed]
        total.index_add_(0, rows, expert(number, x[rows]).float() * factor)
        start += routed
    return total.to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions that models compute with; each field's default is the torch reference."""

    name: str = "torch"
    pack_linear: Callable[[Tensor, Tensor | None], LinearFunction] = pack_linear
    pack_gated: Callable[[Tensor, Tensor | None], LinearFunction] | None = None
    """Like ``pack_linear``, for a matrix of gate rows followed by as many up rows: ``[T, in]`` to ``silu(gate) * up``
    in one operation. ``None``: ``pack_linear`` and then ``silu_mul``."""
    pack_int8: Callable[[Tensor, Tensor, Tensor | None], LinearFunction] | None = None
    """Like ``pack_linear``, for an int8 weight of at most 65,536 columns with a ``scale`` ``[out]`` for its rows, and a
    bias; inputs are bfloat16. ``None``: quantizations multiply with such weights themselves."""
    pack_quantized: Callable[[QuantizedWeight, Tensor | None, torch.dtype], LinearFunction | None] | None = None
    """Like ``pack_linear``, for a quantized weight, a bias, and the dtype of the inputs; returns ``None`` for a weight
    that the kernel set does not support. ``None`` instead of the function: quantizations multiply themselves."""
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = add_rms_norm
    silu_mul: Callable[[Tensor], Tensor] = silu_mul
    apply_rope: Callable[[Tensor, Tensor, Tensor], Tensor] = apply_rope
    rope_store: RopeStore | None = None
    """``kernels.rope_store`` as one operation; used with a ``FusedStoreCapable`` attention backend. ``None``:
    ``apply_rope`` rotates, and the backend stores."""
    moe: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = moe
    biased_moe: BiasedMoe = biased_moe
    causal_conv: Callable[[Tensor, Tensor, Tensor | None, Tensor, SequenceSpans], Tensor] = causal_conv
    """See ``ops.ssm.causal_conv``; the next three functions are defined there, too."""
    linear_attention: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, SequenceSpans], Tensor] = linear_attention
    gated_delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, SequenceSpans], Tensor] = (
        gated_delta_rule
    )
    selective_scan: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, SequenceSpans], Tensor] = selective_scan
    add_low_rank: AddLowRank | None = None
    """See ``ops.lora.add_low_rank``. ``None``: adapters compute their product themselves, and steps with adapters are
    not captured."""
    mask_logits: Callable[[Tensor, Tensor | None, Tensor], Tensor] = mask_logits
    """See ``ops.sampling.mask_logits``."""
    sample_tokens: Callable[[Tensor, SamplingOptions, Tensor], Tensor] = sample_tokens
    """See ``ops.sampling.sample_tokens``."""

    def __post_init__(self) -> None:
        """Raise ``TypeError`` for a field that is not callable, before a step fails because of it."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "name" and not callable(value) and not (value is None and item.default is None):
                raise TypeError(f"Kernels({self.name!r}): {item.name} must be a function, not {type(value).__name__}")


TORCH = Kernels()
