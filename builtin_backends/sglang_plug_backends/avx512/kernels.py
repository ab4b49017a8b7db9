"""The kernel set: each function passes pointers to the compiled library; other dtypes than bfloat16 use torch."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from sglang_plug import Kernels, LinearFunction, SamplingOptions

from .dense import dense_bias, dense_rows
from .library import load
from .memory import PageMemory
from .quantized import pack_quantized
from .recurrent import causal_conv, gated_delta_rule, linear_attention, selective_scan

DEFINITIONS = Kernels()
"""The torch functions that define each operation."""
PANEL = 32
"""Number of columns in one panel of the packed matrix."""
CHUNK = 2048
"""Number of tokens whose probabilities ``draw`` sums as one chunk."""
WEIGHTS = (torch.bfloat16, torch.float32)
"""Dtypes of norm weights."""
LANES = 16
"""Columns of the gate in a panel, followed by as many columns of the gated half."""


def build() -> Kernels:
    """Build the kernel set. Raises ``ConfigError`` if the library cannot be compiled or loaded on this machine."""
    load()
    memory = PageMemory()
    return Kernels(
        name="avx512",
        pack_linear=partial(pack_linear, memory=memory),
        pack_gated=partial(pack_gated, memory=memory),
        pack_int8=partial(pack_int8, memory=memory),
        pack_quantized=partial(pack_quantized, memory=memory),
        rms_norm=rms_norm,
        add_rms_norm=add_rms_norm,
        silu_mul=silu_mul,
        apply_rope=apply_rope,
        causal_conv=causal_conv,
        linear_attention=linear_attention,
        gated_delta_rule=gated_delta_rule,
        selective_scan=selective_scan,
        mask_logits=mask_logits,
        sample_tokens=sample_tokens,
    )


def pack_linear(weight: Tensor, bias: Tensor | None, *, memory: PageMemory) -> LinearFunction:
    """Pack ``weight`` ``[out, in]`` into panels. A row's result is independent of the other rows in the batch."""
    if not _fits(weight):
        return DEFINITIONS.pack_linear(weight, bias)
    return _packed(weight, bias, memory, gated=False)


def pack_gated(weight: Tensor, bias: Tensor | None, *, memory: PageMemory) -> LinearFunction:
    """Pack ``weight`` ``[2 * width, in]``, gate first, and return a function for ``silu(gate) * up`` ``[T, width]``."""
    half = weight.shape[0] // 2
    if not _fits(weight) or half % LANES:
        multiply = pack_linear(weight, bias, memory=memory)
        return lambda x: silu_mul(multiply(x))
    order = torch.arange(2 * half).view(2, half // LANES, LANES).transpose(0, 1).reshape(-1)
    return _packed(weight[order], None if bias is None else bias[order], memory, gated=True)


def _fits(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and weight.shape[1] % 2 == 0 and weight.numel() > 0


def _packed(weight: Tensor, bias: Tensor | None, memory: PageMemory, *, gated: bool) -> LinearFunction:
    library = load()
    width, depth = weight.shape
    weight, bias = weight.contiguous(), dense_bias(bias, width)
    packed = memory.take((width + PANEL - 1) // PANEL * PANEL * depth)
    library.pack_matrix(weight.data_ptr(), packed.data_ptr(), width, depth)
    packed_at, bias_at = packed.data_ptr(), None if bias is None else bias.data_ptr()
    out_width = width // 2 if gated else width

    def linear(x: Tensor, kept: tuple[Tensor, Tensor | None] = (packed, bias)) -> Tensor:
        x = dense_rows(x, depth)
        rows = x.shape[0]
        out = x.new_empty(rows, out_width)
        library.linear(x.data_ptr(), packed_at, bias_at, out.data_ptr(), rows, width, depth, gated)
        return out

    return linear


def pack_int8(weight: Tensor, scale: Tensor, bias: Tensor | None, *, memory: PageMemory) -> LinearFunction:
    """Pack an int8 ``weight`` ``[out, in]`` into panels; bfloat16 inputs are quantized to 16 bits."""
    library = load()
    if weight.dtype != torch.int8:
        raise TypeError(f"the matrix must be in int8, not in {weight.dtype}")
    width, depth = weight.shape
    weight, bias = weight.contiguous(), dense_bias(bias, width)
    columns = (width + PANEL - 1) // PANEL * PANEL
    packed = memory.take(columns * ((depth + 3) // 4 * 4) // 2)
    sums, scales = torch.empty(columns, dtype=torch.float32), torch.zeros(columns, dtype=torch.float32)
    scales[:width] = scale.float()
    library.pack_int8(weight.data_ptr(), packed.data_ptr(), sums.data_ptr(), width, depth)
    at = (packed.data_ptr(), scales.data_ptr(), sums.data_ptr(), None if bias is None else bias.data_ptr())

    def linear(x: Tensor, kept: tuple[Tensor | None, ...] = (packed, scales, sums, bias)) -> Tensor:
        x = dense_rows(x, depth)
        out = x.new_empty(x.shape[0], width)
        library.linear_int8(x.data_ptr(), *at, out.data_ptr(), x.shape[0], width, depth)
        return out

    return linear


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute the definition with a single rounding."""
    if x.dtype != torch.bfloat16 or weight.dtype not in WEIGHTS:
        return DEFINITIONS.rms_norm(x, weight, eps)
    return _norm(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``(rms_norm(x + residual), x + residual)``; the sum is written to ``residual``."""
    known = x.dtype == residual.dtype == torch.bfloat16 and weight.dtype in WEIGHTS and x.shape == residual.shape
    if not known or not residual.is_contiguous():
        return DEFINITIONS.add_rms_norm(x, residual, weight, eps)
    return _norm(x, residual, weight, eps), residual


def _norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    if weight.numel() != width:
        raise ValueError(f"a norm's weight has {weight.numel()} numbers, the rows it is for have {width}")
    added = None if residual is None else residual.data_ptr()
    wide = weight.dtype == torch.float32
    load().rms_norm(x.data_ptr(), added, weight.data_ptr(), out.data_ptr(), x.numel() // width, width, wide, eps)
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """Compute the definition with a single rounding."""
    if gate_up.dtype != torch.bfloat16:
        return DEFINITIONS.silu_mul(gate_up)
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    load().silu_mul(gate_up.data_ptr(), out.data_ptr(), out.numel() // width, width)
    return out


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Compute the definition with a single rounding."""
    known = x.dtype == cos.dtype == sin.dtype == torch.bfloat16 and cos.shape == sin.shape and cos.dim() == 2
    tokens, heads, dim = x.shape
    if not known or len(cos) != tokens or cos.shape[1] > dim or x.stride(-1) != 1:
        return DEFINITIONS.apply_rope(x, cos, sin)
    cos, sin = cos.contiguous(), sin.contiguous()
    out = torch.empty((tokens, heads, dim), dtype=x.dtype)
    at = (x.data_ptr(), cos.data_ptr(), sin.data_ptr(), out.data_ptr())
    load().rope(*at, tokens, heads, dim, cos.shape[-1], x.stride(0), x.stride(1))
    return out


def mask_logits(logits: Tensor, rows: Tensor | None, mask: Tensor) -> Tensor:
    """Apply the definition in place."""
    known = logits.dtype == torch.float32 and mask.dtype == torch.int32 and logits.dim() == mask.dim() == 2
    if not known or not logits.is_contiguous() or not mask.is_contiguous():
        return DEFINITIONS.mask_logits(logits, rows, mask)
    rows = None if rows is None else rows.to(torch.int64).contiguous()
    at = (logits.data_ptr(), None if rows is None else rows.data_ptr(), mask.data_ptr())
    load().mask_logits(*at, len(mask), logits.shape[-1], mask.shape[-1])
    return logits


def sample_tokens(logits: Tensor, options: SamplingOptions, uniform: Tensor) -> Tensor:
    """Sample as defined; rows with top-k, top-p or min-p use the definition itself."""
    if options.cut or logits.dtype != torch.float32 or not logits.is_contiguous():
        return DEFINITIONS.sample_tokens(logits, options, uniform)
    rows, width = logits.shape
    blocks = -(-width // CHUNK)
    tops, sums = (torch.empty(rows, blocks, dtype=dtype) for dtype in (torch.float32, torch.float64))
    out = torch.empty(rows, dtype=torch.int64)
    temperature, uniform = options.temperature.float().contiguous(), uniform.double().contiguous()
    load().draw(
        logits.data_ptr(),
        temperature.data_ptr(),
        uniform.data_ptr(),
        tops.data_ptr(),
        sums.data_ptr(),
        out.data_ptr(),
        rows,
        width,
    )
    return out
