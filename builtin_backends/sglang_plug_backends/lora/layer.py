"""The LoRA product of one or several adapters, added to the output of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sglang_plug import Joinable, JoinedAdapters, LowRank, LowRankAdapter, LowRankPart, send


@dataclass(frozen=True, slots=True)
class Pair:
    """The low-rank update of some columns of an output: ``scale * up @ down @ x``."""

    columns: slice
    down: Tensor
    """``[rank, in]``."""
    up: Tensor
    """``[out, rank]``."""
    scale: float

    @property
    def key(self) -> tuple[int, int]:
        """Return a hashable key of the columns."""
        return self.columns.start, self.columns.stop


class StackedLowRank:
    """Low-rank pairs of one layer, multiplied together: all ``down`` first, then ``up`` for each part of the output.

    Args:
        owned: pairs, and the number of the adapter that each is of.
    """

    def __init__(self, owned: Sequence[tuple[int, Pair]]) -> None:
        owned = sorted(owned, key=lambda item: item[1].key)
        self._down = torch.cat([pair.down for _, pair in owned])
        self._ups: list[tuple[slice, slice, Tensor]] = []
        """Columns of the output, ranks, ``[ranks, out]``."""
        start = 0
        for key in dict.fromkeys(pair.key for _, pair in owned):
            up = torch.cat([pair.up for _, pair in owned if pair.key == key], dim=1).T.contiguous()
            self._ups.append((slice(*key), slice(start, start + len(up)), up))
            start += len(up)
        self._owners = [number for number, pair in owned for _ in range(len(pair.down))]
        self._scales = [pair.scale for _, pair in owned for _ in range(len(pair.down))]
        self._lengths = [len(pair.down) for _, pair in owned for _ in range(len(pair.down))]

    def of_one(self) -> LowRank:
        """Return the pairs as the low-rank parts of their only adapter."""
        parts = []
        for columns, ranks, up in self._ups:
            start = ranks.start
            while start < ranks.stop:
                stop = start + self._lengths[start]
                own = up[start - ranks.start : stop - ranks.start]
                parts.append(LowRankPart(columns=columns, ranks=slice(start, stop), up=own, scale=self._scales[start]))
                start = stop
        return LowRank(down=self._down, parts=tuple(parts))

    def factors(self, adapters: int) -> Tensor:
        """Build ``[adapters + 1, ranks]``: the scale of each rank in rows of each adapter.

        It is zero in rows of other adapters and in the last row.
        """
        result = torch.zeros(adapters + 1, len(self._owners), dtype=torch.float32)
        for rank, (owner, scale) in enumerate(zip(self._owners, self._scales, strict=True)):
            result[owner, rank] = scale
        return send(result.to(self._down.dtype), self._down.device)

    def add(self, x: Tensor, y: Tensor, factors: Tensor) -> None:
        """Add the update of ``x`` ``[N, in]`` to ``y`` ``[N, out]``; ``factors`` are ``[ranks]`` or ``[N, ranks]``."""
        inner = F.linear(x, self._down).mul_(factors)
        if factors.dim() > 1:
            inner.masked_fill_(factors == 0, 0)  # also where another adapter's numbers overflow
        for columns, ranks, up in self._ups:
            y[:, columns].addmm_(inner[:, ranks], up)


class LoraLayer(Joinable, LowRankAdapter):
    """One adapter in one layer.

    Args:
        pairs: for different columns of the product.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._stacked = StackedLowRank([(0, pair) for pair in pairs])
        self._factors = self._stacked.factors(1)[0]
        self._low_rank = self._stacked.of_one()
        self.pairs = tuple(
            Pair(part.columns, self._low_rank.down[part.ranks], part.up.T, part.scale) for part in self._low_rank.parts
        )
        """Pairs in the memory of the stacked matrices."""

    @property
    def low_rank(self) -> LowRank:
        """Return the matrices in the form that the contract defines."""
        return self._low_rank

    def after(self, x: Tensor, y: Tensor) -> None:
        """Add ``scale * up @ down @ x``."""
        self._stacked.add(x, y, self._factors)

    @classmethod
    def join(cls, layers: Sequence[Self]) -> JoinedAdapters:
        """Join the ranks of all adapters in one product; each row uses the ranks of its own adapter."""
        stacked = StackedLowRank([(number, pair) for number, layer in enumerate(layers) for pair in layer.pairs])
        factors = stacked.factors(len(layers))

        def after(x: Tensor, y: Tensor, which: Tensor) -> None:
            stacked.add(x, y, factors[which])

        return after
