"""The kernel set: each function does what its definition in ``sglang_plug.kernels`` does.

Where a kernel cannot run (a CPU without the interpreter, an unusual layout, nothing to do) the definition is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug import Kernels
from sglang_plug import kernels as definitions

from . import interpreter  # noqa: F401 - decides how the kernels below are defined
from .kernels_rows import add_rms_norm_kernel, rms_norm_kernel, rope_kernel, silu_mul_kernel
from .launch import COMPILATION, power_of_two, runs
from .moe import multiply, sort_pairs, tiles_for

WIDEST_ROW = 1 << 16
"""Elements that one program holds at once."""
PAIR_BLOCK = 1024
HEAD_BLOCK = 16


def build() -> Kernels:
    """The kernel set."""
    return Kernels(
        name="triton", rms_norm=rms_norm, add_rms_norm=add_rms_norm, silu_mul=silu_mul, apply_rope=apply_rope, moe=moe
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the definition; ``x`` may be a view with three dimensions, such as the heads of one projection."""
    size = x.shape[-1]
    if not runs(x, weight) or x.dim() not in (2, 3) or x.stride(-1) != 1 or size > WIDEST_ROW:
        return definitions.rms_norm(x, weight, eps)
    inner = x.shape[1] if x.dim() == 3 else 1
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, weight.dtype), device=x.device)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        rms_norm_kernel[(x.numel() // size,)](
            x,
            weight,
            out,
            inner,
            x.stride(0),
            x.stride(1) if x.dim() == 3 else 0,
            eps,
            SIZE=size,
            BLOCK=power_of_two(size),
            num_warps=_warps(size),
            **COMPILATION,
        )
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As the definition; the sum is written to ``residual``, the norm to ``x``."""
    size = x.shape[-1]
    plain = x.is_contiguous() and residual.is_contiguous() and x.shape == residual.shape
    same = x.dtype == residual.dtype == weight.dtype
    if not runs(x, residual, weight) or not plain or not same or size > WIDEST_ROW:
        return definitions.add_rms_norm(x, residual, weight, eps)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        add_rms_norm_kernel[(x.numel() // size,)](
            x, residual, weight, eps, SIZE=size, BLOCK=power_of_two(size), num_warps=_warps(size), **COMPILATION
        )
    return x, residual


def silu_mul(gate_up: Tensor) -> Tensor:
    """As the definition, with one rounding instead of two."""
    if not runs(gate_up) or not gate_up.is_contiguous():
        return definitions.silu_mul(gate_up)
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    with torch.cuda.device_of(gate_up):  # type: ignore[no-untyped-call]
        silu_mul_kernel[(out.numel() // width, -(-width // PAIR_BLOCK))](
            gate_up, out, width, BLOCK=PAIR_BLOCK, **COMPILATION
        )
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As the definition, in one pass; ``x`` may be a view of a wider projection."""
    width, dim = cos.shape[-1], x.shape[-1]
    plain = x.dim() == 3 and x.stride(-1) == cos.stride(-1) == sin.stride(-1) == 1 and cos.stride(0) == sin.stride(0)
    if not runs(x, cos, sin) or not plain or cos.dtype != sin.dtype:
        return definitions.apply_rope(x, cos, sin)
    tokens, heads, _ = x.shape
    out = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, cos.dtype), device=x.device)
    head_block = min(HEAD_BLOCK, power_of_two(heads))
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        rope_kernel[(tokens, -(-heads // head_block))](
            x,
            cos,
            sin,
            out,
            heads,
            x.stride(0),
            x.stride(1),
            cos.stride(0),
            HALF=width // 2,
            HALF_BLOCK=power_of_two(width // 2),
            REST=dim - width,
            REST_BLOCK=power_of_two(dim - width),
            HEAD_BLOCK=head_block,
            **COMPILATION,
        )
    return out


def moe(x: Tensor, gate_up: Tensor, down: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """As the definition, in two grouped products over tokens sorted by expert; the host waits for nothing."""
    if (
        not runs(x, gate_up, down, experts)
        or x.stride(-1) != 1
        or not (gate_up.is_contiguous() and down.is_contiguous())
    ):
        return definitions.moe(x, gate_up, down, experts, weights)
    tokens, chosen = experts.shape
    count, hidden, width = down.shape
    tiles = tiles_for(tokens * chosen, count, x.dtype)
    blocks = sort_pairs(experts, count, tiles.rows)
    pair = x.new_empty(tokens * chosen, 2 * width)
    between = silu_mul(multiply(x, gate_up, blocks, tiles, chosen=chosen, factors=None, out=pair))
    parts = torch.empty(tokens * chosen, hidden, dtype=torch.float32, device=x.device)
    factors = weights.flatten().float()
    multiply(between, down, blocks, tiles, chosen=chosen, factors=factors, out=parts)
    return parts.view(tokens, chosen, hidden).sum(1).to(x.dtype)


def _warps(size: int) -> int:
    return 1 if size <= 256 else 4 if size <= 2048 else 8 if size <= 8192 else 16
