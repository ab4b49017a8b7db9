"""Random weights for measuring and trying a model without its weights."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator

import torch
from torch import Tensor

from sglang_plug import Checkpoint, Model

BLOCK_SIZE = 16_777_213
"""Number of random numbers; larger tensors repeat them. A prime, so that no two rows of a matrix are equal."""
STD = 0.02
HOST = torch.device("cpu")


def load_dummy(checkpoint: Checkpoint, model: Model, *, block_size: int = BLOCK_SIZE) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor for each of the model's own parameters, with the parameter's name and dtype, of all ranks.

    Vectors called ``weight`` (norms) are ones, the rest is normal with a standard deviation of 0.02. The values depend
    only on the parameters' names and shapes, so every run makes the same ones. They are created on the parameter's
    device, to avoid copying gigabytes to a GPU.
    """
    parameters, shapes = dict(model.named_parameters()), model.whole_shapes()
    longest = max(map(math.prod, shapes.values()), default=0)
    numbers = RandomNumbers(min(longest, block_size))
    for name, parameter in parameters.items():
        if parameter.dim() == 1 and name.endswith("weight"):
            yield name, torch.ones(shapes[name], dtype=parameter.dtype)
            continue
        device = HOST if parameter.is_meta else parameter.device
        yield name, numbers.tensor(shapes[name], parameter.dtype, device, zlib.crc32(name.encode()))


class RandomNumbers:
    """A block of random numbers, which tensors of any size repeat; each device has a copy of it in each dtype.

    Args:
        size: how many numbers there are.
    """

    def __init__(self, size: int) -> None:
        self._numbers = torch.randn(size, generator=torch.Generator().manual_seed(0), dtype=torch.float32) * STD
        self._copies: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
        """Return a tensor on ``device`` that repeats the block from an offset, which depends on ``seed``."""
        kind = dtype, device
        if kind not in self._copies:
            self._copies[kind] = self._numbers.to(dtype).to(device)
        block = self._copies[kind]
        filled = torch.empty(shape, dtype=dtype, device=device)
        flat, start, done = filled.view(-1), seed % max(1, block.numel()), 0
        while done < flat.numel():
            piece = block[start : start + flat.numel() - done]
            flat[done : done + piece.numel()] = piece
            done, start = done + piece.numel(), 0
        return filled
