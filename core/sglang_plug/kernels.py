"""The operations a kernel plugin may replace, and their definitions in torch.

A kernel set is a ``Kernels`` with some fields replaced; what it leaves out stays the torch reference. Layers
bind the functions once, when they are built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from .coded import CodedWeight
from .drawing import DrawOptions, draw_tokens, mask_logits
from .low_rank import AddLowRank
from .recurrent import Runs
from .scanning import causal_conv, gated_delta_rule, linear_attention, selective_scan

if TYPE_CHECKING:
    from .batch import KVPool

LinearFunction = Callable[[Tensor], Tensor]
"""``[T, in]`` to ``[T, out]``."""
RopeStore = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, "KVPool", int, Tensor], tuple[Tensor, Tensor]]
"""See ``rope_store``."""
BiasedMoe = Callable[
    [Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor
]
"""See ``biased_moe``."""


def pack_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """Prepare ``weight`` ``[out, in]`` once, after loading, for many multiplications ``x @ weight.T + bias``.

    A replacement may keep its own copy in another layout; the layer then drops the original.
    """
    return lambda x: F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``weight * x / sqrt(mean(x**2) + eps)`` over the last dimension, computed in float32, in ``x``'s dtype.

    A ``weight`` in float32 multiplies before the rounding to a narrower ``x``'s dtype, any other after it.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (weight * wide if weight.dtype == torch.float32 else weight * wide.to(x.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(rms_norm(x + residual), x + residual)``; may write to either input."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    """``silu(gate) * up`` of ``[T, 2 * width]``, whose first half is the gate, to ``[T, width]``."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate ``x`` ``[T, heads, dim]`` by ``cos``/``sin`` ``[T, dim]``, in half-split order.

    Both tables hold their ``dim / 2`` angles twice. If they are narrower than ``x`` the rest is left as it is.
    """
    width = cos.shape[-1]
    turned, kept = x[..., :width], x[..., width:]
    left, right = turned.chunk(2, dim=-1)
    turned = turned * cos[:, None] + torch.cat((-right, left), dim=-1) * sin[:, None]
    return torch.cat((turned, kept), dim=-1) if kept.shape[-1] else turned


def rope_store(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, kv: KVPool, layer: int, slots: Tensor
) -> tuple[Tensor, Tensor]:
    """``q`` and ``k`` rotated as by ``apply_rope``, in their own dtype; that ``k`` and ``v`` are in the pool then too.

    Args:
        q: ``[T, heads, dim]``.
        k: ``[T, kv_heads, dim]``.
        v: ``[T, kv_heads, value_dim]``, no part of ``k``.
        cos: ``[T, width]``.
        sin: ``[T, width]``.
        kv: keys and values of all layers, in any dtype: ``KVPool.store`` says how they are converted.
        layer: the pool's row.
        slots: ``[T]`` int64, where the step's keys and values go.
    """
    q, k = apply_rope(q, cos, sin).to(q.dtype), apply_rope(k, cos, sin).to(k.dtype)
    kv.store(layer, k, v, slots)
    return q, k


def moe(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """For each token, the weighted sum of what its chosen experts make of it, added in float32, in ``x``'s dtype.

    Expert ``e`` is ``down[e] @ (silu(gate) * up)`` with ``gate, up = gate_up[e] @ x``. Tokens are gathered by
    expert, and each expert that is chosen at all is read once.

    Args:
        x: ``[T, hidden]``.
        gate_up: ``[E, 2 * width, hidden]``; the first ``width`` rows of an expert are its gate.
        down: ``[E, hidden, width]``.
        experts: ``[T, k]`` int64, which experts each token goes to.
        weights: ``[T, k]``, what each of them counts.
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
    """As ``moe``, of experts with biases ``[E, 2 * width]`` and ``[E, hidden]``, if any, and ``gated`` in place of
    ``silu(gate) * up``, of ``[N, 2 * width]``, row by row; or of ``[N, width]``, where experts have no gates."""

    def expert(number: int, rows: Tensor) -> Tensor:
        between = gated(F.linear(rows, gate_up[number], None if gate_up_bias is None else gate_up_bias[number]))
        return F.linear(between, down[number], None if down_bias is None else down_bias[number])

    return each_expert(x, len(gate_up), expert, experts, weights)


def each_expert(
    x: Tensor, count: int, expert: Callable[[int, Tensor], Tensor], experts: Tensor, weights: Tensor
) -> Tensor:
    """As ``moe``, one of ``count`` experts after the other: ``expert`` is given its number, and the rows for it."""
    chosen = experts.flatten()
    order = chosen.argsort(stable=True)
    tokens, factors = order // experts.shape[1], weights.flatten()[order, None].float()
    total = torch.zeros_like(x, dtype=torch.float32)
    start = 0
    for number, own in enumerate(chosen.bincount(minlength=count).tolist()):
        if own == 0:
            continue
        rows, factor = tokens[start : start + own], factors[start : start + own]
        total.index_add_(0, rows, expert(number, x[rows]).float() * factor)
        start += own
    return total.to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions models compute with; each field's default is the torch reference."""

    name: str = "torch"
    pack_linear: Callable[[Tensor, Tensor | None], LinearFunction] = pack_linear
    pack_gated: Callable[[Tensor, Tensor | None], LinearFunction] | None = None
    """Like ``pack_linear``, of a gate's rows and as many that it weighs: ``[T, in]`` to ``silu(gate) * up`` in one go.
    ``None``: ``pack_linear``, then ``silu_mul``."""
    pack_int8: Callable[[Tensor, Tensor, Tensor | None], LinearFunction] | None = None
    """Like ``pack_linear`` with a weight in int8 of at most 65,536 columns, whose rows count ``scale`` ``[out]``, and a
    bias; inputs are in bfloat16. ``None``: quantizations that keep such weights multiply by themselves."""
    pack_coded: Callable[[CodedWeight, Tensor | None, torch.dtype], LinearFunction | None] | None = None
    """Like ``pack_linear``, of a weight in codes, a bias, and the dtype that inputs are in; gives ``None`` for one that
    the kernel set cannot take. ``None`` in place of it: quantizations multiply by themselves."""
    rms_norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]] = add_rms_norm
    silu_mul: Callable[[Tensor], Tensor] = silu_mul
    apply_rope: Callable[[Tensor, Tensor, Tensor], Tensor] = apply_rope
    rope_store: RopeStore | None = None
    """What ``kernels.rope_store`` does, in one go; used with a ``StoredCapable`` attention backend. ``None``:
    ``apply_rope``, and the backend stores."""
    moe: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] = moe
    biased_moe: BiasedMoe = biased_moe
    causal_conv: Callable[[Tensor, Tensor, Tensor | None, Tensor, Runs], Tensor] = causal_conv
    """See ``scanning.causal_conv``; so the three below."""
    linear_attention: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Runs], Tensor] = linear_attention
    gated_delta_rule: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Runs], Tensor] = gated_delta_rule
    selective_scan: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Runs], Tensor] = selective_scan
    add_low_rank: AddLowRank | None = None
    """See ``low_rank.add_low_rank``. ``None``: adapters add what they add by themselves, and steps with any are not
    captured."""
    mask_logits: Callable[[Tensor, Tensor | None, Tensor], Tensor] = mask_logits
    """See ``drawing.mask_logits``."""
    draw_tokens: Callable[[Tensor, DrawOptions, Tensor], Tensor] = draw_tokens
    """See ``drawing.draw_tokens``."""

    def __post_init__(self) -> None:
        """Raise ``TypeError`` for a field that cannot be called: it would show in a step, and look like the model's."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name != "name" and not callable(value) and not (value is None and item.default is None):
                raise TypeError(f"Kernels({self.name!r}): {item.name} must be a function, not {type(value).__name__}")


TORCH = Kernels()
