"""Weights and activations as e4m3 floating-point numbers in eight bits.

Every output row of a weight has a scale, every token's activations get one when they arrive. Tensor cores multiply the
two and apply the scales to the sum. A CPU does the same with numbers turned back into floats: slowly, to try and test.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import ConfigError, LinearScheme, Matrix, Quantization, QuantizationRequest, StoredTensor
from sglang_plug.kernels import LinearFunction

from .fp8_checkpoint import Stored, read
from .settings import Fp8Settings

logger = logging.getLogger(__name__)

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
SMALLEST_SCALE = 1e-12
MULTIPLE = 16
"""Tensor cores want both sizes of a matrix to be multiples of this."""
CAPABILITY = (8, 9)


def build(request: QuantizationRequest, settings: Fp8Settings) -> Quantization:
    """Reads e4m3 checkpoints, and converts ordinary weights when they are loaded.

    Raises ``ConfigError`` if the checkpoint holds another format, or the device cannot multiply this one.
    """
    if request.tp_size != 1:
        raise ConfigError(f"--quantization fp8 does not support tensor parallelism, but tp_size is {request.tp_size}")
    if request.device.type == "cuda":
        _check_device(request)
    else:
        logger.warning("Matrices in FP8 are turned back into floats on a CPU: slower than without quantization")
    if request.stored is None:
        roles = {"linear", "head"} if settings.head else {"linear"}
        return Quantization(name="fp8", scheme=lambda matrix: _converted(matrix) if matrix.role in roles else None)
    stored = read(request.stored)
    return Quantization(name="fp8", scheme=lambda matrix: _stored(matrix, stored))


def _converted(matrix: Matrix) -> LinearScheme | None:
    if matrix.size_in % MULTIPLE or matrix.size_out % MULTIPLE:
        return None
    return LinearScheme(pack=lambda tensors, bias: pack(*quantize(tensors["weight"]), bias))


def _stored(matrix: Matrix, stored: Stored) -> LinearScheme | None:
    if not stored.holds(matrix):
        return None
    if matrix.role == "experts":
        raise ConfigError(f"the checkpoint holds the experts {matrix.name!r} in FP8, which is not supported yet")
    if matrix.size_in % MULTIPLE or matrix.size_out % MULTIPLE:
        raise ConfigError(
            f"{matrix.name!r} is {matrix.size_out} by {matrix.size_in}: in FP8 both must be multiples of {MULTIPLE}"
        )
    scale = StoredTensor(shape=(matrix.size_out, 1), dtype=torch.float32, one_per_part=stored.one_scale)
    return LinearScheme(
        pack=lambda tensors, bias: pack(tensors["weight"], tensors["weight_scale"], bias),
        stored={
            "weight": StoredTensor(shape=(matrix.size_out, matrix.size_in), dtype=DTYPE),
            "weight_scale": scale,
        },
    )


def pack(weight: Tensor, scale: Tensor, bias: Tensor | None) -> LinearFunction:
    """Multiply with ``weight`` ``[out, in]`` in e4m3, whose rows count ``scale`` ``[out, 1]`` float32."""
    columns, scales = weight.t(), scale.t().contiguous()
    multiply = multiply_scaled if weight.is_cuda else multiply_reference

    def linear(x: Tensor) -> Tensor:
        found = multiply(*quantize(x), columns, scales).to(x.dtype)
        return found if bias is None else found.add_(bias)

    return linear


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """``[rows, columns]`` in e4m3 and a float32 factor for each row, ``[rows, 1]``."""
    wide = x.float()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_(min=SMALLEST_SCALE)
    return (wide / scale).clamp_(-LARGEST, LARGEST).to(DTYPE), scale


def multiply_scaled(x: Tensor, x_scale: Tensor, columns: Tensor, scales: Tensor) -> Tensor:
    """``[rows, in]`` by ``[in, out]`` in e4m3, with scales ``[rows, 1]`` and ``[1, out]``, on tensor cores."""
    found: Tensor = torch._scaled_mm(x, columns, scale_a=x_scale, scale_b=scales, out_dtype=torch.bfloat16)
    return found


def multiply_reference(x: Tensor, x_scale: Tensor, columns: Tensor, scales: Tensor) -> Tensor:
    """As ``multiply_scaled``, defined in float32."""
    return F.linear(x.float(), columns.float().t()) * x_scale * scales


def _check_device(request: QuantizationRequest) -> None:
    capability = torch.cuda.get_device_capability(request.device)
    if capability < CAPABILITY:
        raise ConfigError(
            f"--quantization fp8 needs a GPU of compute capability {'.'.join(map(str, CAPABILITY))} or later, but "
            f"{torch.cuda.get_device_name(request.device)} has {'.'.join(map(str, capability))}"
        )
