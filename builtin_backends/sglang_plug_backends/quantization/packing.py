"""Unpacking of quantized values of two, four or eight bits from 32-bit words, and packing of two in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

HALF_BYTE = 15
"""The bits of the lower code in a byte with two codes."""


def codes_of(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 ``words`` ``[rows, n]``, lowest bits first, to uint8 ``[rows, n * 32 / bits]``."""
    # a single column counts as contiguous with any stride, but not for a view of another size
    result = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return result
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=result.device)
    return ((result[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def packed_codes(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 ``codes`` ``[rows, n]`` as in ``QuantizedWeight``: ``[rows, n / 2]`` if they have four bits."""
    if bits == 8:
        return codes.contiguous()
    return (codes[:, ::2] | (codes[:, 1::2] & HALF_BYTE) << 4).contiguous()


def smallest(scale: Tensor) -> Tensor:
    """Convert ``scale`` to sixteen bits if that is lossless."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(result := scale.to(dtype), scale) or torch.equal(result.to(scale.dtype), scale):
            return result
    return scale
