"""Matrices in oneDNN's blocked layout, where torch has the operators for the CPU.

Repacked once after loading, a matrix in bfloat16 is read at nearly the memory's speed for one row, where ``F.linear``
reaches two thirds of it. In float32, two to sixty-four rows are multiplied in a third to two thirds of the time. Many
rows are faster in both (see ``docs/benchmarks.md``).
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, LinearFunction

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
ROWS = 32
"""Number of rows for which the layout is chosen; it serves any number."""
EXACT_ROWS = 64
"""Number of rows up to which a product is computed for exactly as many: oneDNN compiles code for each number, which
takes a millisecond. Larger numbers are rounded up, see ``padded_rows``."""
MIN_NUMBERS = 1 << 16
"""Size from which on matrices in float32 are repacked: smaller ones gain less than the compilation costs."""


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
    if not has_packed_product(weight):
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def linear(x: Tensor) -> Tensor:
        rows = len(x)
        padded = padded_rows(rows)
        if padded > rows:
            x = F.pad(x, (0, 0, 0, padded - rows))
        result: Tensor = multiply(x, packed, bias, "none", [], "")
        return result[:rows] if padded > rows else result

    return linear


def padded_rows(rows: int) -> int:
    """Return the number of rows for which a product of ``rows`` rows is computed: at most a sixteenth more."""
    if rows <= EXACT_ROWS:
        return rows
    step = 1 << rows.bit_length() - 5
    return -(-rows // step) * step


def has_packed_product(weight: Tensor) -> bool:
    """Report whether torch has products with ``weight`` in the blocked layout that are faster than ``F.linear``."""
    operators = torch.ops.mkldnn
    if not (hasattr(operators, "_reorder_linear_weight") and hasattr(operators, "_linear_pointwise")):
        return False
    if weight.dtype == torch.bfloat16:
        return bool(operators._is_mkldnn_bf16_supported())
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return weight.dtype == torch.float32 and is_x86 and weight.numel() >= MIN_NUMBERS


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
    rotated = x * cos
    rotated[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return rotated
