"""Random weights for measuring and trying a model without its weights."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from sglang_plug import Checkpoint, Model

BLOCK = 16_777_213
"""Number of random numbers; larger tensors repeat them. A prime, so that no two rows of a matrix are equal."""
STD = 0.02
HOST = torch.device("cpu")


def load_dummy(checkpoint: Checkpoint, model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor for each of the model's own parameters, with the parameter's name and dtype, of all ranks.

    Vectors called ``weight`` (norms) are ones, the rest is normal with a standard deviation of 0.02. The values depend
    only on the parameters' names and shapes, so every run makes the same ones. They are created on the parameter's
    device, to avoid copying gigabytes to a GPU.
    """
    parameters, shapes = dict(model.named_parameters()), model.whole_shapes()
    longest = max(map(math.prod, shapes.values()), default=0)
    block = torch.randn(min(longest, BLOCK), generator=torch.Generator().manual_seed(0), dtype=torch.float32) * STD
    blocks: dict[tuple[torch.dtype, torch.device], Tensor] = {}
    for name, parameter in parameters.items():
        if parameter.dim() == 1 and name.endswith("weight"):
            yield name, torch.ones(shapes[name], dtype=parameter.dtype)
            continue
        kind = parameter.dtype, HOST if parameter.is_meta else parameter.device
        if kind not in blocks:
            blocks[kind] = block.to(kind[0]).to(kind[1])
        yield name, _tile(blocks[kind], shapes[name], zlib.crc32(name.encode()))


def _tile(block: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Repeat the block from an offset in the given shape."""
    filled = torch.empty(shape, dtype=block.dtype, device=block.device)
    flat, start, done = filled.view(-1), seed % max(1, block.numel()), 0
    while done < flat.numel():
        piece = block[start : start + flat.numel() - done]
        flat[done : done + piece.numel()] = piece
        done, start = done + piece.numel(), 0
    return filled
