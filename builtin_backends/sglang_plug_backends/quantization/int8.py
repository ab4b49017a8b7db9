"""Weights in eight bits: half the memory, and faster where reading the weights is what takes the time.

Weight-only and symmetric, one scale for each output row. Activations stay in the model's dtype. Products are those of
the kernel set where it has some for such weights, otherwise torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import ConfigError, LinearScheme, Matrix, Quantization, QuantizationRequest
from sglang_plug.kernels import LinearFunction

from .settings import Int8Settings

PackInt8 = Callable[[Tensor, Tensor, Tensor | None], LinearFunction]
LARGEST = 127
MOST_COLUMNS = 65_536
"""That kernel sets can add up."""
MOST_ROWS = 64
"""More rows than this are multiplied with the matrix turned back into floats: then arithmetic takes the time."""


def build(request: QuantizationRequest, settings: Int8Settings) -> Quantization:
    """Converts weights when they are loaded. Raises ``ConfigError`` if the checkpoint is quantized already."""
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
        chosen = multiply if multiply is not None and matrix.size_in <= MOST_COLUMNS else pack_int8
        return LinearScheme(pack=partial(pack, multiply=chosen))

    return Quantization(name="int8", scheme=scheme)


def pack(tensors: Mapping[str, Tensor], bias: Tensor | None, *, multiply: PackInt8) -> LinearFunction:
    """``weight`` ``[out, in]`` rounded to eight bits."""
    return multiply(*quantize(tensors["weight"]), bias)


def pack_int8(rounded: Tensor, scale: Tensor, bias: Tensor | None) -> LinearFunction:
    """Multiply with ``rounded`` ``[out, in]`` int8, whose rows count ``scale`` ``[out]``."""

    def linear(x: Tensor) -> Tensor:
        if x.shape[0] > MOST_ROWS:
            return F.linear(x, rounded.to(x.dtype).mul_(scale[:, None]), bias)
        found: Tensor = torch._weight_int8pack_mm(x.contiguous(), rounded, scale)
        return found if bias is None else found.add_(bias)

    return linear


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` ``[out, in]`` as int8 and one factor for each row, ``[out]`` in the weight's dtype."""
    scale = (weight.abs().amax(dim=1).float() / LARGEST).to(weight.dtype)
    scale = torch.where(scale > 0, scale, 1)  # rows of zeros, and of what the dtype's smallest step cannot scale
    rounded = (weight.float() / scale.float()[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return rounded.to(torch.int8), scale
