"""Quantized checkpoints, written from a model as the formats specify: simple and slow, one bit field after the
other."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The order in which AWQ packs eight neighbouring outputs into a word, from the lowest bits on."""


@dataclass(frozen=True)
class QuantizedTensor:
    """An integer matrix with scales and zero points."""

    codes: Tensor
    """``[out, in]`` unsigned integers."""
    scale: Tensor
    """``[out, groups]`` float32 with the values of a narrower dtype."""
    zero: Tensor
    """``[out, groups]`` integer zero points."""
    index: Tensor
    """``[in]``, the group of each column."""

    @property
    def weight(self) -> Tensor:
        """Return the matrix that the integers stand for, ``[out, in]`` float32."""
        return (self.codes - self.zero[:, self.index]) * self.scale[:, self.index]


def quantize(
    weight: Tensor,
    *,
    bits: int = 4,
    group: int = 16,
    symmetric: bool = False,
    index: Tensor | None = None,
    dtype: torch.dtype = torch.float16,
) -> QuantizedTensor:
    """Round ``weight`` ``[out, in]`` to integers; with a ``group`` of -1, all columns are one group."""
    size_in, largest = weight.shape[1], (1 << bits) - 1
    group = size_in if group == -1 else group
    index = torch.arange(size_in) // group if index is None else index
    scale, zero = (torch.empty(len(weight), int(index.max()) + 1) for _ in range(2))
    for number in range(scale.shape[1]):
        own = weight[:, index == number]
        low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
        if symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale[:, number] = ((high - low).clamp(min=1e-3) / largest).to(dtype).float()
        middle = torch.full_like(low, float(largest // 2 + 1))
        zero[:, number] = middle if symmetric else (-low / scale[:, number]).round().clamp(0, largest)
    codes = (weight / scale[:, index] + zero[:, index]).round().clamp(0, largest)
    return QuantizedTensor(codes.long(), scale, zero.long(), index)


def words(fields: Tensor, bits: int) -> Tensor:
    """Pack ``[n, …]`` into ``[n * bits / 32, …]`` int32, along the first dimension, beginning with the lowest bits."""
    each = 32 // bits
    missing = -len(fields) % each
    fields = torch.cat([fields, fields.new_zeros(missing, *fields.shape[1:])])
    packed = torch.zeros(len(fields) // each, *fields.shape[1:], dtype=torch.int64)
    for index in range(each):
        packed |= fields[index::each] << (bits * index)
    return (((packed + 2**31) % 2**32) - 2**31).int()


def in_gptq(quantized: QuantizedTensor, *, bits: int = 4, less_one: bool = True) -> dict[str, Tensor]:
    """Return the tensors of a layer for GPTQ; with ``less_one``, zero points are stored minus one, as in the first
    format."""
    zero = (quantized.zero - 1) % (1 << bits) if less_one else quantized.zero
    return {
        "qweight": words(quantized.codes.T, bits),
        "qzeros": words(zero, bits).T.contiguous(),
        "scales": quantized.scale.T.half().contiguous(),
        "g_idx": quantized.index.int(),
    }


def in_awq(quantized: QuantizedTensor) -> dict[str, Tensor]:
    """Return the tensors of a layer for AWQ."""

    def pack(fields: Tensor) -> Tensor:
        shuffled = torch.stack(
            [fields[:, 8 * word + index] for word in range(fields.shape[1] // 8) for index in AWQ_ORDER]
        )
        return words(shuffled, 4).T.contiguous()

    return {
        "qweight": pack(quantized.codes.T),
        "qzeros": pack(quantized.zero.T),
        "scales": quantized.scale.T.half().contiguous(),
    }


def in_compressed_words(
    quantized: QuantizedTensor, *, bits: int = 4, symmetric: bool = True, ordered: bool = True
) -> dict[str, Tensor]:
    """Return the tensors of a layer in the format ``pack-quantized``."""
    tensors = {
        "weight_packed": words(quantized.codes.T, bits).T.contiguous(),
        "weight_scale": quantized.scale.clone(),
        "weight_shape": torch.tensor(quantized.codes.shape),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words(quantized.zero, bits)
    return tensors if ordered else {**tensors, "weight_g_idx": quantized.index.int()}


def in_compressed_int8(quantized: QuantizedTensor, *, symmetric: bool = True) -> dict[str, Tensor]:
    """Return the tensors of a layer in the format ``int-quantized``."""
    tensors = {"weight": (quantized.codes - 128).to(torch.int8), "weight_scale": quantized.scale.clone()}
    return tensors if symmetric else {**tensors, "weight_zero_point": (quantized.zero - 128).to(torch.int8)}


def in_fp8_blocks(
    weight: Tensor, rows: int, columns: int, name: str = "weight_scale_inv"
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the tensors of a layer in FP8 with a scale for each block, and the weight that they stand for."""
    numbers, back = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty_like(weight)
    scale = torch.empty(-(-weight.shape[0] // rows), -(-weight.shape[1] // columns))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            block = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale[i, j] = weight[block].abs().max() / 448
            numbers[block] = (weight[block] / scale[i, j]).to(torch.float8_e4m3fn)
            back[block] = numbers[block].float() * scale[i, j]
    return {"weight": numbers, name: scale}, back


Packer = Callable[[str, Tensor], tuple[Mapping[str, Tensor], Tensor]]
"""Packs a layer's weight: its name and weight -> the tensors of a checkpoint, and the weight that they stand for."""


def apart(experts: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of each matrix of transformers' stacked experts, as views."""
    gate_up, down = experts.gate_up_proj.data, experts.down_proj.data
    for number in range(len(down)):
        gate, up = gate_up[number].chunk(2)
        yield from (
            (f"{number}.{name}_proj", tensor) for name, tensor in (("gate", gate), ("up", up), ("down", down[number]))
        )


def matrices(model: nn.Module, head: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yield name and weight of the matrices of transformers' model that are quantized: linear layers and experts."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (head or name != "lm_head"):
            yield name, module.weight.data
        elif name.endswith(".experts"):
            yield from ((f"{name}.{part}", weight) for part, weight in apart(module))


def write(model: Any, folder: Path, config: Mapping[str, Any], pack: Packer, *, head: bool = False) -> nn.Module:
    """Write the checkpoint of a ``TinyModel`` with packed matrices; return transformers' model with the dequantized
    weights."""
    folder.mkdir()
    reference = copy.deepcopy(model.reference)
    tensors = load_file(model.path / "model.safetensors")
    for name, weight in matrices(reference, head):
        packed, back = pack(name, weight)
        del tensors[f"{name}.weight"]
        tensors |= {f"{name}.{part}": tensor for part, tensor in packed.items()}
        weight.copy_(back)
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((model.path / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "quantization_config": dict(config)}))
    return reference
