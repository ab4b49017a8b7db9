"""Matrix multiplication with quantized weights, by the compiled library."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import LinearFunction, QuantizedWeight

from .dense import dense_bias, dense_rows
from .library import load
from .memory import PageMemory

PANEL = 32
"""Number of columns in one panel of the packed matrix."""
MAX_GROUP = {4: 4096, 8: 256}
"""Maximum group size, so that sums of products fit into 32-bit integers."""
NOT_A_NUMBER = 0x7F


def pack_quantized(
    weight: QuantizedWeight, bias: Tensor | None, dtype: torch.dtype, *, memory: PageMemory
) -> LinearFunction | None:
    """Pack ``weight`` into panels for bfloat16 inputs; ``None`` if the library cannot multiply with it.

    Integers are multiplied with 16-bit activations, which have a scale for each group.
    """
    columns = weight.shape[1]
    if dtype != torch.bfloat16 or weight.codes.device.type != "cpu" or not columns:
        return None
    if weight.zero is None:
        codes = weight.codes.view(torch.uint8)
        known = not bool(((codes & NOT_A_NUMBER) == NOT_A_NUMBER).any())
        return _pack_e4m3(weight, bias, memory) if known and columns % 2 == 0 and weight.group % 2 == 0 else None
    group = _group(weight)
    return None if group is None else _pack_codes(weight, bias, group, memory)


def _group(weight: QuantizedWeight) -> int | None:
    """Return the largest group size that the library supports and that divides the weight's."""
    step, columns = 32 // weight.bits, weight.shape[1]
    if columns % weight.group:
        return None
    return next(
        (index for index in range(MAX_GROUP[weight.bits], 0, -1) if weight.group % index == 0 and index % step == 0),
        None,
    )


def _pack_codes(weight: QuantizedWeight, bias: Tensor | None, group: int, memory: PageMemory) -> LinearFunction:
    library = load()
    assert weight.zero is not None
    (width, depth), codes = weight.shape, weight.codes
    if weight.bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), -1)
    packed = memory.take(_padded(width) * depth * weight.bits // 16)
    codes, bias = codes.contiguous(), dense_bias(bias, width)
    library.pack_codes(codes.data_ptr(), packed.data_ptr(), width, depth, weight.bits)
    times = weight.group // group
    scales, zeros = (_by_panels(tensor, times) for tensor in (weight.scale.float(), weight.zero))
    at = (packed.data_ptr(), scales.data_ptr(), zeros.data_ptr(), None if bias is None else bias.data_ptr())
    four = weight.bits == 4

    def linear(x: Tensor, kept: tuple[Tensor | None, ...] = (packed, scales, zeros, bias)) -> Tensor:
        x = dense_rows(x, depth)
        out = x.new_empty(x.shape[0], width)
        multiply = library.linear_codes4 if four else library.linear_codes8
        multiply(x.data_ptr(), *at, out.data_ptr(), x.shape[0], width, depth, group)
        return out

    return linear


def _pack_e4m3(weight: QuantizedWeight, bias: Tensor | None, memory: PageMemory) -> LinearFunction:
    library = load()
    width, depth = weight.shape
    packed = memory.take(_padded(width) * depth // 2)
    codes, bias = weight.codes.contiguous(), dense_bias(bias, width)
    library.pack_e4m3(codes.data_ptr(), packed.data_ptr(), width, depth)
    scales = _by_panels(weight.scale.float(), 1)
    at = (packed.data_ptr(), scales.data_ptr(), None if bias is None else bias.data_ptr())
    group = weight.group

    def linear(x: Tensor, kept: tuple[Tensor | None, ...] = (packed, scales, bias)) -> Tensor:
        x = dense_rows(x, depth)
        out = x.new_empty(x.shape[0], width)
        library.linear_e4m3(x.data_ptr(), *at, out.data_ptr(), x.shape[0], width, depth, group)
        return out

    return linear


def _padded(width: int) -> int:
    return -(-width // PANEL) * PANEL


def _by_panels(values: Tensor, times: int) -> Tensor:
    """Rearrange ``[out, groups]`` to ``[panels, groups * times, PANEL]``."""
    width, groups = values.shape
    padded = F.pad(values, (0, 0, 0, _padded(width) - width)).repeat_interleave(times, 1)
    return padded.view(-1, PANEL, groups * times).transpose(1, 2).contiguous()
