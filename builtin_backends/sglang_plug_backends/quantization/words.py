"""Codes of two, four or eight bits: out of words of 32 bits, in which checkpoints have them, and two in a byte."""

from __future__ import annotations

import torch
from torch import Tensor

from sglang_plug.coded import HALF_BYTE


def codes_of(words: Tensor, bits: int) -> Tensor:
    """The codes of int32 ``words`` ``[rows, n]``, the lowest bits first: ``[rows, n * 32 / bits]`` uint8."""
    # one column counts as contiguous whatever its stride, and is not for a view of another size
    found = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    if bits == 8:
        return found
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=found.device)
    return ((found[..., None] >> shifts) & ((1 << bits) - 1)).flatten(-2)


def packed_codes(codes: Tensor, bits: int) -> Tensor:
    """``codes`` ``[rows, n]`` uint8 as ``CodedWeight`` has them: four bits each ``[rows, n / 2]``, or as they are."""
    if bits == 8:
        return codes.contiguous()
    return (codes[:, ::2] | (codes[:, 1::2] & HALF_BYTE) << 4).contiguous()


def smallest(scale: Tensor) -> Tensor:
    """``scale`` in sixteen bits if that loses nothing, otherwise as it is."""
    for dtype in (torch.float16, torch.bfloat16):
        if torch.equal(found := scale.to(dtype), scale) or torch.equal(found.to(scale.dtype), scale):
            return found
    return scale
