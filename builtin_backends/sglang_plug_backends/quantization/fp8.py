"""Weights and activations as e4m3 floating-point numbers in eight bits.

Every output row of a weight has a scale, every token's activations get one when they arrive. Tensor cores multiply the
two and apply the scales to the sum. A CPU does the same with numbers turned back into floats: slowly, to try and test.
Weights with a scale for each block, and those of checkpoints where a CPU's kernel set takes them, are multiplied with
activations in the model's dtype.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import (
    ConfigError,
    LinearFunction,
    LinearScheme,
    Matrix,
    Quantization,
    QuantizationRequest,
    QuantizedWeight,
    StoredTensor,
)

from .fp8_checkpoint import Fp8Format, read
from .matmul import pack_quantized
from .settings import Fp8Settings

logger = logging.getLogger(__name__)

DTYPE = torch.float8_e4m3fn
LARGEST = torch.finfo(DTYPE).max
SMALLEST_SCALE = 1e-12
MULTIPLE = 16
"""Sizes of a matrix for tensor cores are multiples of this."""
CAPABILITY = (8, 9)
WITHOUT = (".input_scale", ".weight_shape")
"""Suffixes of ignored tensors: static activation scales, because scales are computed dynamically."""


def build(request: QuantizationRequest, settings: Fp8Settings) -> Quantization:
    """Build the scheme, which reads e4m3 checkpoints and converts ordinary weights at load time.

    Raises ``ConfigError`` if the checkpoint holds another format, or the device cannot multiply this one.
    """
    if request.device.type == "cuda":
        _check_device(request)
    elif request.stored is None or request.kernels.pack_quantized is None or request.dtype != torch.bfloat16:
        logger.warning("FP8 matrices are dequantized for each use on a CPU: slower than without quantization")
    if request.stored is None:
        roles = {"linear", "head"} if settings.head else {"linear"}
        return Quantization(name="fp8", scheme=lambda matrix: _converted(matrix) if matrix.role in roles else None)
    stored = read(request.stored)
    return Quantization(
        name="fp8",
        scheme=lambda matrix: _stored(matrix, stored, request) if stored.holds(matrix) else None,
        is_ignored=lambda name, tensor: name.endswith(WITHOUT),
    )


def _converted(matrix: Matrix) -> LinearScheme | None:
    if matrix.size_in % MULTIPLE or matrix.size_out % MULTIPLE:
        return None
    return LinearScheme(pack=lambda tensors, bias: pack(*quantize(tensors["weight"]), bias))


def _stored(matrix: Matrix, stored: Fp8Format, request: QuantizationRequest) -> LinearScheme:
    rounds = stored.block is None and stored.rounds_activations and matrix.role != "experts"
    if rounds and (matrix.size_in % MULTIPLE or matrix.size_out % MULTIPLE):
        raise ConfigError(
            f"{matrix.name!r} is {matrix.size_out} by {matrix.size_in}: in FP8 both must be multiples of {MULTIPLE}"
        )
    rows, columns = stored.block or (1, matrix.size_in)
    shape = (matrix.row_block_count(rows), -(-matrix.size_in // columns))
    scale = StoredTensor(
        shape=shape, dtype=torch.float32, rows=rows, one_per_part=stored.one_scale, inner=1, columns=columns
    )

    def weight(held: Mapping[str, Tensor]) -> QuantizedWeight:
        each = by_rows(held[stored.scale_name], matrix.parts, rows)
        return QuantizedWeight(codes=held["weight"], scale=each, group=columns)

    def product(held: Mapping[str, Tensor], bias: Tensor | None) -> LinearFunction:
        if not rounds:
            return pack_quantized(weight(held), bias, matrix.dtype, request.kernels)
        own = None if held["weight"].is_cuda else request.kernels.pack_quantized
        result = None if own is None else own(weight(held), bias, matrix.dtype)
        return pack(held["weight"], held[stored.scale_name], bias) if result is None else result

    return LinearScheme(
        pack=product,
        dense=lambda held: weight(held).dense(matrix.dtype),
        stored={
            "weight": StoredTensor(shape=(matrix.size_out, matrix.size_in), dtype=DTYPE, inner=1),
            stored.scale_name: scale,
        },
    )


def by_rows(scale: Tensor, parts: Sequence[int], rows: int) -> Tensor:
    """Expand a ``scale`` per block of ``rows`` rows to one per row; each of ``parts`` begins a new block."""
    lines = [-(-size // rows) for size in parts]
    each = zip(scale.split_with_sizes(lines), parts, strict=True)
    return torch.cat([item.repeat_interleave(rows, 0)[:size] for item, size in each])


def pack(weight: Tensor, scale: Tensor, bias: Tensor | None) -> LinearFunction:
    """Multiply with ``weight`` ``[out, in]`` in e4m3 with row scales ``scale`` ``[out, 1]`` float32."""
    columns, scales = weight.t(), scale.t().contiguous()
    multiply = multiply_scaled if weight.is_cuda else multiply_reference

    def linear(x: Tensor) -> Tensor:
        result = multiply(*quantize(x), columns, scales).to(x.dtype)
        return result if bias is None else result.add_(bias)

    return linear


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize to ``[rows, columns]`` in e4m3 and a float32 scale for each row, ``[rows, 1]``."""
    wide = x.float()
    scale = (wide.abs().amax(dim=-1, keepdim=True) / LARGEST).clamp_(min=SMALLEST_SCALE)
    return (wide / scale).clamp_(-LARGEST, LARGEST).to(DTYPE), scale


def multiply_scaled(x: Tensor, x_scale: Tensor, columns: Tensor, scales: Tensor) -> Tensor:
    """Multiply ``[rows, in]`` by ``[in, out]`` in e4m3, with scales ``[rows, 1]`` and ``[1, out]``, on tensor cores."""
    result: Tensor = torch._scaled_mm(x, columns, scale_a=x_scale, scale_b=scales, out_dtype=torch.bfloat16)
    return result


def multiply_reference(x: Tensor, x_scale: Tensor, columns: Tensor, scales: Tensor) -> Tensor:
    """Compute ``multiply_scaled`` by its definition in float32."""
    return F.linear(x.float(), columns.float().t()) * x_scale * scales


def _check_device(request: QuantizationRequest) -> None:
    capability = torch.cuda.get_device_capability(request.device)
    if capability < CAPABILITY:
        raise ConfigError(
            f"--quantization fp8 needs a GPU of compute capability {'.'.join(map(str, CAPABILITY))} or later, but "
            f"{torch.cuda.get_device_name(request.device)} has {'.'.join(map(str, capability))}"
        )
