"""Matrices: one, or several that share their input and are multiplied together."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sglang_plug.kernels import LinearFunction
from sglang_plug.model import BuildEnv


class Linear(nn.Module):
    """``x @ weight.T + bias``, ``[T, in]`` to ``[T, out]``.

    After ``pack_weights`` the kernel set holds the weight in its own layout and the parameter is gone.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, size_in: int, size_out: int, env: BuildEnv, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in))
        self.bias = nn.Parameter(torch.empty(size_out)) if bias else None
        self._pack = env.kernels.pack_linear
        self._multiply: LinearFunction = self._plain

    def forward(self, x: Tensor) -> Tensor:
        """``[T, in]`` to ``[T, out]``."""
        return self._multiply(x)

    def pack_weights(self) -> None:
        """Let the kernel set prepare the weight for many multiplications."""
        if self.weight is None:
            return
        self._multiply = self._pack(self.weight.detach(), None if self.bias is None else self.bias.detach())
        self.weight = self.bias = None

    def _plain(self, x: Tensor) -> Tensor:
        assert self.weight is not None
        return F.linear(x, self.weight, self.bias)


class Packed(Linear):
    """Several matrices of one input, stored one below the other and multiplied at once.

    Args:
        size_in: columns of every part.
        parts: rows of each part, in order, e.g. ``{"q": 896, "k": 128, "v": 128}``.
        env: the surroundings the model is built in.
        bias: whether the parts have biases.
    """

    def __init__(self, size_in: int, parts: Mapping[str, int], env: BuildEnv, *, bias: bool = False) -> None:
        super().__init__(size_in, sum(parts.values()), env, bias=bias)
        self.shards = tuple(parts)
        self._sizes = tuple(parts.values())
        starts = [sum(self._sizes[:index]) for index in range(len(parts))]
        self._rows = {
            name: slice(start, start + size) for name, start, size in zip(parts, starts, self._sizes, strict=True)
        }

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """``forward``, and the result cut into the parts, as views."""
        return self(x).split(self._sizes, dim=-1)

    def load_shard(self, parameter: Tensor, tensor: Tensor, shard: str | None) -> None:
        """Copy one part's weight or bias; ``None`` stands for all parts in one tensor.

        Raises ``ValueError`` if the shapes differ.
        """
        target = parameter if shard is None else parameter[self._rows[shard]]
        if target.shape != tensor.shape:
            raise ValueError(f"expected shape {tuple(target.shape)}, found {tuple(tensor.shape)}")
        target.copy_(tensor)
