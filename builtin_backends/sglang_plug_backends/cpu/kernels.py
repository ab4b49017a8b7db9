"""Matrices in oneDNN's blocked layout, if torch has the operators and the CPU has bfloat16 arithmetic.

Repacked once after loading, a matrix is read at nearly the memory's speed for one row, where ``F.linear`` in
bfloat16 reaches two thirds of it, and multiplies faster for many rows too (see ``docs/benchmarks.md``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, LinearFunction

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
ROWS = 32
"""Number of rows for which the layout is chosen; it serves any number."""


def build() -> Kernels:
    """Build the kernel set for this CPU."""
    return Kernels(
        name="cpu",
        pack_linear=pack_linear,
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        silu_mul=silu_mul,
        apply_rope=apply_rope,
    )


def pack_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """Repack ``weight`` ``[out, in]`` into the blocked layout if that helps; otherwise keep it."""
    if weight.dtype != torch.bfloat16 or not _has_packed_linear():
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: Tensor) -> Tensor:
        result: Tensor = multiply(x, packed, bias, "none", [], "")
        return result

    return linear


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute the definition with torch's own operator: fewer calls, and one rounding less in bfloat16."""
    if weight.dtype != x.dtype:
        return DEFINITIONS.rms_norm(x, weight, eps)
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``(rms_norm(x + residual), x + residual)``; the sum is written to ``residual``."""
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute the definition; the product overwrites the gate's memory."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute the definition without a copy of ``x`` with its halves swapped."""
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((apply_rope(x[..., :width], cos, sin), x[..., width:]), dim=-1)
    half = width // 2
    cos, sin = cos[:, None], sin[:, None]
    turned = x * cos
    turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return turned


def _has_packed_linear() -> bool:
    operators = torch.ops.mkldnn
    return (
        hasattr(operators, "_reorder_linear_weight")
        and hasattr(operators, "_linear_pointwise")
        and bool(operators._is_mkldnn_bf16_supported())
    )
