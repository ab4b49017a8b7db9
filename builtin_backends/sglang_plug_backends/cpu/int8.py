"""Matrices in eight bits: half the memory, and faster where reading the weights is what takes the time.

Weight-only and symmetric, one scale for each output row. Activations stay in bfloat16.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Kernels
from sglang_plug.kernels import LinearFunction

from . import kernels

LARGEST = 127
MOST_ROWS = 64
"""More rows than this are multiplied with the matrix turned back into bfloat16: then arithmetic takes the time."""


def build() -> Kernels:
    """The kernel set for CPUs with matrices in eight bits."""
    return replace(kernels.build(), name="cpu-int8", pack_linear=pack_linear)


def pack_linear(weight: Tensor, bias: Tensor | None) -> LinearFunction:
    """``weight`` ``[out, in]`` rounded to eight bits if it is in bfloat16, else as it is."""
    if weight.dtype != torch.bfloat16:
        return kernels.pack_linear(weight, bias)
    rounded, scale = quantize(weight)

    def linear(x: Tensor) -> Tensor:
        if x.shape[0] > MOST_ROWS:
            return F.linear(x, rounded.to(x.dtype).mul_(scale[:, None]), bias)
        found: Tensor = torch._weight_int8pack_mm(x.contiguous(), rounded, scale)
        return found if bias is None else found.add_(bias)

    return linear


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` ``[out, in]`` as int8 and one factor for each row, ``[out]`` in the weight's dtype."""
    scale = (weight.abs().amax(dim=1).float() / LARGEST).clamp_(min=torch.finfo(torch.float32).tiny)
    scale = scale.to(weight.dtype)
    rounded = (weight.float() / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return rounded.to(torch.int8), scale
