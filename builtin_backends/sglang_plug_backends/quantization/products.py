"""Products with matrices in codes: by the kernel set if it has some, otherwise by torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug.coded import HALF_BYTE, CodedWeight
from sglang_plug.kernels import Kernels, LinearFunction

GROUPS = (256, 128, 64, 32)
"""Columns of a group that torch's product with four bits on the host takes."""
MULTIPLE_OF_ROWS = 16
MIDDLE = 8
"""Zero of torch's codes."""
CHUNK = 1 << 22
"""Numbers of a matrix that are floats at once."""


def pack_coded(weight: CodedWeight, bias: Tensor | None, dtype: torch.dtype, kernels: Kernels) -> LinearFunction:
    """Multiply with ``weight``; inputs are in ``dtype``. The weight is kept in codes, in one layout or another."""
    if kernels.pack_coded is not None and (found := kernels.pack_coded(weight, bias, dtype)) is not None:
        return found
    group = _group_of_torch(weight)
    if weight.codes.device.type == "cpu" and dtype == torch.bfloat16 and group is not None:
        return _pack_int4(weight, bias, group)
    return pack_chunks(weight, bias)


def pack_chunks(weight: CodedWeight, bias: Tensor | None) -> LinearFunction:
    """Multiply with one part of the rows after the other, each turned into floats for it."""
    rows, columns = weight.shape
    step = max(1, CHUNK // columns)
    chunks = [slice(start, min(start + step, rows)) for start in range(0, rows, step)]

    def linear(x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], rows)
        for chunk in chunks:
            own = None if bias is None else bias[chunk]
            out[:, chunk] = F.linear(x, weight.dense(x.dtype, chunk), own)
        return out

    return linear


def _group_of_torch(weight: CodedWeight) -> int | None:
    """The largest group that torch takes and that divides the weight's; ``None``: torch does not take it."""
    rows, columns = weight.shape
    if weight.bits != 4 or rows % MULTIPLE_OF_ROWS or columns % weight.group:
        return None
    return next((one for one in GROUPS if weight.group % one == 0), None)


def _pack_int4(weight: CodedWeight, bias: Tensor | None, group: int) -> LinearFunction:
    """By torch's product with four bits: scales are in bfloat16 there."""
    assert weight.zero is not None
    codes = torch.stack((weight.codes & HALF_BYTE, weight.codes >> 4), -1).flatten(1)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.int(), 1)
    scale = weight.scale.float()
    start = (MIDDLE - weight.zero.float()) * scale
    each = torch.stack((scale, start), -1).repeat_interleave(weight.group // group, 1)
    each = each.transpose(0, 1).contiguous().bfloat16()

    def linear(x: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x.contiguous(), packed, group, each)
        return found if bias is None else found.add_(bias)

    return linear
