"""Adapter tables for captured steps: a table per layer, with the same slot for an adapter in all of them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sglang_plug import AdaptableLayer, LayerAdapter, LowRank, LowRankAdapter, LowRankTable

logger = logging.getLogger(__name__)

AddLowRank = Callable[[Tensor, Tensor, LowRankTable, Tensor], None]
"""The type of ``Kernels.add_low_rank``."""
SLOTS = 128
"""Number of adapters in the tables; steps with further adapters are computed without graphs."""


class AdapterTables:
    """The adapter tables of a model's layers.

    Args:
        add: the kernel that applies adapters.
        layers: the model's layers.
        dtype: dtype of the adapters' matrices.
        device: device of the tables.
        slots: number of adapters that there is room for.
    """

    def __init__(
        self,
        add: AddLowRank,
        layers: Sequence[AdaptableLayer],
        *,
        dtype: torch.dtype,
        device: torch.device,
        slots: int = SLOTS,
    ) -> None:
        self._add = add
        self._free = list(range(slots, 0, -1))
        self._tables = {
            layer.name: LowRankTable(segments_of(layer.parts), layer.size_in, slots=slots, dtype=dtype, device=device)
            for layer in layers
        }
        self.grown = 0
        """Number of times that an adapter had more ranks than all before; graphs captured earlier are invalid."""

    def put(self, name: str, layers: Mapping[str, LayerAdapter]) -> int:
        """Add the adapter ``name``; return its slot, or 0 if steps with it cannot be captured."""
        matrices: dict[str, LowRank] = {}
        for layer, adapter in layers.items():
            own = adapter.low_rank if isinstance(adapter, LowRankAdapter) else None
            if own is None or not self._tables[layer].fits(own):
                logger.info("Steps with adapter %r run without graphs: kernels cannot apply it to %s", name, layer)
                return 0
            matrices[layer] = own
        if not self._free:
            logger.info("Steps with adapter %r run without graphs: there are too many adapters", name)
            return 0
        slot, before = self._free.pop(), self._room()
        try:
            for layer, table in self._tables.items():  # the previous adapter of the slot may be in any of the tables
                table.put(slot, matrices.get(layer))
        except Exception:
            self._return(slot)
            raise
        finally:
            self.grown += self._room() != before
        return slot

    def keep(self, slot: int, adapter: object) -> None:
        """Free the slot as soon as ``adapter`` is no longer referenced."""
        weakref.finalize(adapter, self._return, slot).atexit = False

    def add(self, name: str, x: Tensor, y: Tensor, which: Tensor) -> None:
        """Apply the adapters of the layer ``name``; see ``Kernels.add_low_rank``."""
        self._add(x, y, self._tables[name], which)

    def _room(self) -> list[tuple[int, int]]:
        return [(table.max_ranks, table.max_part_ranks) for table in self._tables.values()]

    def _return(self, slot: int) -> None:
        for table in self._tables.values():
            table.forget(slot)
        self._free.append(slot)


def segments_of(parts: Mapping[str, slice]) -> list[slice]:
    """Return the smallest segments from which all of the column ranges can be composed."""
    edges = sorted({edge for columns in parts.values() for edge in (columns.start, columns.stop)})
    return [slice(start, stop) for start, stop in zip(edges, edges[1:], strict=False)]
