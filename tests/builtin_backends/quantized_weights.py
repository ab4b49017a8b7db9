"""Random quantized matrices for tests."""

from __future__ import annotations

import torch

from sglang_plug.ops.quantized_weight import QuantizedWeight

SIZES = [(64, 128, 32), (7, 64, 64), (33, 96, 24), (130, 512, 128), (31, 256, 256)]
"""``(out, in, group)``: odd heights, groups that are no power of two, and one group for all columns."""


def random_weight(kind: str, size_out: int, size_in: int, group: int) -> QuantizedWeight:
    """Build a matrix of ``kind``: ``4`` or ``8`` for integers of so many bits, or ``e4m3``."""
    torch.manual_seed(size_out + size_in)
    groups = -(-size_in // group)
    scale = torch.logspace(-3, 0, size_out)[:, None] * (torch.rand(size_out, groups) + 0.5)
    if kind == "e4m3":
        codes = (torch.randn(size_out, size_in) * torch.logspace(-2, 2, size_in)).to(torch.float8_e4m3fn)
        return QuantizedWeight(codes=codes, scale=scale, group=group)
    levels = 1 << int(kind)
    codes = torch.randint(0, levels, (size_out, size_in), dtype=torch.uint8)
    zero = torch.randint(0, levels, (size_out, groups), dtype=torch.uint8)
    if kind == "8":
        return QuantizedWeight(codes=codes, scale=scale, zero=zero, group=group)
    return QuantizedWeight(codes=codes[:, ::2] | codes[:, 1::2] << 4, scale=scale, zero=zero, group=group, bits=4)
