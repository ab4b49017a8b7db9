"""Weights in eight bits: half the memory, and faster when reading the weights is the bottleneck.

Weight-only and symmetric, one scale for each output row. Activations stay in the model's dtype. The kernel set
multiplies if it supports such weights, otherwise torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import ConfigError, LinearFunction, LinearScheme, Matrix, Quantization, QuantizationRequest

from .settings import Int8Settings

PackInt8 = Callable[[Tensor, Tensor, Tensor | None], LinearFunction]
LARGEST = 127
MAX_COLUMNS = 65_536
"""Maximum columns that kernel sets can accumulate."""
MAX_ROWS = 64
"""Rows above which the matrix is dequantized first, because arithmetic is the bottleneck."""
VECTOR = 64
"""Torch's product of int8 weights adds numbers beyond a row whose length is no multiple of the processor's vectors."""


def build(request: QuantizationRequest, settings: Int8Settings) -> Quantization:
    """Build the scheme, which converts weights at load time.

    Raises ``ConfigError`` if the checkpoint is quantized already.
    """
    if request.stored is not None:
        raise ConfigError(
            f"--quantization int8 converts ordinary weights, but the checkpoint's are quantized "
            f"({request.stored.get('quant_method')}); leave --quantization at auto"
        )
    roles = {"linear", "head"} if settings.head else {"linear"}
    multiply = request.kernels.pack_int8 if request.dtype == torch.bfloat16 else None

    def scheme(matrix: Matrix) -> LinearScheme | None:
        if matrix.role not in roles:
            return None
        chosen = multiply if multiply is not None and matrix.size_in <= MAX_COLUMNS else pack_int8
        return LinearScheme(pack=partial(pack, multiply=chosen))

    return Quantization(name="int8", scheme=scheme)


def pack(tensors: Mapping[str, Tensor], bias: Tensor | None, *, multiply: PackInt8) -> LinearFunction:
    """Quantize ``weight`` ``[out, in]`` to eight bits and pack it."""
    return multiply(*quantize(tensors["weight"]), bias)


def pack_int8(rounded: Tensor, scale: Tensor, bias: Tensor | None) -> LinearFunction:
    """Multiply with ``rounded`` ``[out, in]`` int8 with row scales ``scale`` ``[out]``."""

    max_rows = MAX_ROWS if rounded.shape[1] % VECTOR == 0 else 0

    def linear(x: Tensor) -> Tensor:
        if x.shape[0] > max_rows:
            return F.linear(x, rounded.to(x.dtype).mul_(scale[:, None]), bias)
        result: Tensor = torch._weight_int8pack_mm(x.contiguous(), rounded, scale)
        return result if bias is None else result.add_(bias)

    return linear


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize ``weight`` ``[out, in]`` to int8 and one scale for each row, ``[out]`` in the weight's dtype."""
    scale = (weight.abs().amax(dim=1).float() / LARGEST).to(weight.dtype)
    scale = torch.where(scale > 0, scale, 1)  # rows of zeros, and rows too small for the dtype's smallest step
    rounded = (weight.float() / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return rounded.to(torch.int8), scale
