"""Matrix multiplication with quantized weights: by the kernel set if it supports them, otherwise by torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels, LinearFunction, QuantizedWeight

from .packing import HALF_BYTE

GROUPS = (256, 128, 64, 32)
"""Group sizes that torch's four-bit multiplication on the CPU supports."""
MULTIPLE_OF_ROWS = 16
MIDDLE = 8
"""Zero point of torch's four-bit values."""
MAX_DEQUANTIZED = 1 << 22
"""Maximum numbers of a matrix that are dequantized at once, unless a single row has more."""


def pack_quantized(
    weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, kernels: Kernels
) -> LinearFunction:
    """Pack ``weight`` for inputs in ``dtype``. The weight stays quantized, in one layout or another."""
    if kernels.pack_quantized is not None and (result := kernels.pack_quantized(weight, bias, dtype)) is not None:
        return result
    group = _group_of_torch(weight)
    if weight.codes.device.type == "cpu" and dtype == torch.bfloat16 and group is not None:
        return _pack_int4(weight, bias, group)
    return pack_chunks(weight, bias)


def pack_chunks(weight: QuantizedWeight, bias: Tensor | None, *, max_numbers: int = MAX_DEQUANTIZED) -> LinearFunction:
    """Multiply with chunks of the rows, each of at most ``max_numbers`` numbers and dequantized in turn."""
    rows, columns = weight.shape
    step = max(1, max_numbers // columns)
    chunks = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def linear(x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], rows)
        for chunk in chunks:
            own = None if bias is None else bias[chunk]
            out[:, chunk] = F.linear(x, weight.dense(x.dtype, chunk), own)
        return out

    return linear


def _group_of_torch(weight: QuantizedWeight) -> int | None:
    """Return the largest group size that torch supports and that divides the weight's; ``None`` if there is none."""
    rows, columns = weight.shape
    if weight.bits != 4 or rows % MULTIPLE_OF_ROWS or columns % weight.group:
        return None
    return next((group for group in GROUPS if weight.group % group == 0), None)


def _pack_int4(weight: QuantizedWeight, bias: Tensor | None, group: int) -> LinearFunction:
    """Pack for torch's four-bit multiplication, which has bfloat16 scales."""
    assert weight.zero is not None
    codes = torch.stack((weight.codes & HALF_BYTE, weight.codes >> 4), -1).flatten(1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    scale = weight.scale.float()
    start = (MIDDLE - weight.zero.float()) * scale
    each = torch.stack((scale, start), -1).repeat_interleave(weight.group // group, 1)
    each = each.transpose(0, 1).contiguous().bfloat16()

    def linear(x: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), packed, group, each)
        return result if bias is None else result.add_(bias)

    return linear
