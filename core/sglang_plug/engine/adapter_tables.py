"""Where captured steps find adapters: a table for each layer, and a place for each adapter in all of them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sglang_plug.adapters import AdaptableLayer, LayerAdapter, LowRankAdapter
from sglang_plug.low_rank import AddLowRank, LowRank, LowRankTable, segments_of

logger = logging.getLogger(__name__)

PLACES = 128
"""Adapters that captured steps may have at once; those of more are computed without graphs."""


class AdapterTables:
    """Tables of a model's layers.

    Args:
        add: the kernels'.
        layers: the model's.
        dtype: of the adapters' matrices.
        device: where they are.
        places: adapters that there is room for.
    """

    def __init__(
        self,
        add: AddLowRank,
        layers: Sequence[AdaptableLayer],
        *,
        dtype: torch.dtype,
        device: torch.device,
        places: int = PLACES,
    ) -> None:
        self._add = add
        self._free = list(range(places, 0, -1))
        self._tables = {
            one.name: LowRankTable(segments_of(one.parts), one.size_in, places=places, dtype=dtype, device=device)
            for one in layers
        }
        self.grown = 0
        """How often there has been an adapter of more ranks than before; steps that were captured earlier are void."""

    def put(self, name: str, layers: Mapping[str, LayerAdapter]) -> int:
        """Enter the adapter ``name``; its place, or 0 if steps with it cannot be captured."""
        found: dict[str, LowRank] = {}
        for layer, adapter in layers.items():
            own = adapter.low_rank if isinstance(adapter, LowRankAdapter) else None
            if own is None or not self._tables[layer].fits(own):
                logger.info("Steps with adapter %r run without graphs: kernels cannot apply it to %s", name, layer)
                return 0
            found[layer] = own
        if not self._free:
            logger.info("Steps with adapter %r run without graphs: there are too many adapters", name)
            return 0
        place, before = self._free.pop(), self._room()
        for layer, table in self._tables.items():  # whoever had the place before may stand in any of them
            table.put(place, found.get(layer))
        self.grown += self._room() != before
        return place

    def keep(self, place: int, adapter: object) -> None:
        """Give the place back as soon as nobody has ``adapter`` any more."""
        weakref.finalize(adapter, self._give_back, place).atexit = False

    def add(self, name: str, x: Tensor, y: Tensor, which: Tensor) -> None:
        """See ``low_rank.add_low_rank``, of the layer ``name``."""
        self._add(x, y, self._tables[name], which)

    def _room(self) -> list[tuple[int, int]]:
        return [(one.most_ranks, one.most_part_ranks) for one in self._tables.values()]

    def _give_back(self, place: int) -> None:
        for table in self._tables.values():
            table.forget(place)
        self._free.append(place)
