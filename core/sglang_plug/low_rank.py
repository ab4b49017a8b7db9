"""Products of narrow matrices that adapters add to those of layers, in a table that kernels read on the device.

A captured step does again what it was captured with. Which adapters there are, and whose each row is, therefore stands
in tensors: a table for each layer has a place for each adapter, with the addresses of its matrices, and a step has the
number of a place for each of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .transfer import pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPart:
    """What is added to some columns of a product."""

    columns: slice
    ranks: slice
    """Rows of ``LowRank.down``."""
    up: Tensor
    """``[ranks, columns]``, contiguous."""
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank:
    """One adapter in one layer: ``y[:, columns] += scale * x @ down[ranks].T @ up`` for each of its parts."""

    down: Tensor
    """``[ranks, in]``, contiguous."""
    parts: tuple[LowRankPart, ...]


ALIGNMENT = 16
"""Bytes that a device reads at once."""
LEAST_RANKS = 64
"""What a table has room for from the beginning; a power of two."""
DOWN, RANKS, HEADER = 0, 1, 2
UP, FIRST, COUNT, STRIDE, FIELDS = 0, 1, 2, 3, 4
"""Columns of ``LowRankTable.entries``: address and rows of ``down``; then for each segment the address of the first
number of ``up`` that is its own, the first rank and their number, and how far its rows are apart."""


class LowRankTable:
    """The adapters of one layer, by place.

    Args:
        segments: columns of the product that are adapted together, in order and without overlap.
        size_in: columns of the layer's matrix.
        places: adapters there may be; place 0, which is none, comes on top.
        dtype: of all matrices.
        device: where they are.
    """

    def __init__(
        self, segments: Sequence[slice], size_in: int, *, places: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.segments, self.size_in, self.dtype, self.device = tuple(segments), size_in, dtype, device
        self.width = max(one.stop - one.start for one in segments)
        self.most_ranks = self.most_part_ranks = LEAST_RANKS
        """Powers of two: ranks that one adapter has at most, and that one of its segments has."""
        self.held: dict[int, LowRank] = {}
        width = HEADER + FIELDS * len(self.segments)
        self._host_entries = torch.zeros(1 + places, width, dtype=torch.int64)
        self._host_scales = torch.zeros(1 + places, len(self.segments))
        self.entries = torch.zeros(1 + places, width, dtype=torch.int64, device=device)
        """``[places + 1, 2 + 4 * segments]``; stays where it is."""
        self.scales = torch.zeros(1 + places, len(self.segments), device=device)
        """``[places + 1, segments]`` float32; stays where it is."""
        bounds = [[one.start for one in segments], [one.stop for one in segments]]
        self.bounds = torch.tensor(bounds, dtype=torch.int32).to(device)
        """``[2, segments]`` int32: where each begins and ends."""

    def fits(self, adapter: LowRank) -> bool:
        """True if ``put`` takes it: its matrices lie so that a device reads them fast, and its parts consist of whole
        segments, of which no two have one in common."""
        dense = [adapter.down, *(part.up for part in adapter.parts)]
        if not all(
            one.is_contiguous() and one.dtype == self.dtype and one.device == self.entries.device for one in dense
        ):
            return False
        starts = [segment.start * self.dtype.itemsize for segment in self.segments]
        rows = [one.shape[1] * self.dtype.itemsize for one in dense]
        if any(place % ALIGNMENT for place in (*starts, *rows, *(one.data_ptr() for one in dense))):
            return False
        own = [segment for part in adapter.parts for segment in self._segments(part)]
        covered = sum(self.segments[one].stop - self.segments[one].start for one in own)
        wanted = sum(part.columns.stop - part.columns.start for part in adapter.parts)
        return len(set(own)) == len(own) and covered == wanted

    def put(self, place: int, adapter: LowRank | None) -> None:
        """Let rows with the number ``place``, from 1 on, have ``adapter``, or none. What is queued already is not
        concerned. ``adapter`` must fit."""
        entry, scales = self._host_entries[place].zero_(), self._host_scales[place].zero_()
        self.held.pop(place, None)
        if adapter is not None:
            self.held[place] = adapter
            entry[DOWN], entry[RANKS] = adapter.down.data_ptr(), len(adapter.down)
            self.most_ranks = max(self.most_ranks, _power_of_two(len(adapter.down)))
            for part in adapter.parts:
                self._enter(entry, scales, part)
        self.entries.copy_(pinned(self._host_entries, self.device), non_blocking=True)
        self.scales.copy_(pinned(self._host_scales, self.device), non_blocking=True)

    def forget(self, place: int) -> None:
        """Let go of the adapter with the number ``place``, which no row will have before the next ``put`` there.

        Nothing is asked of the device, so that any thread may do it at any time.
        """
        self.held.pop(place, None)

    def _enter(self, entry: Tensor, scales: Tensor, part: LowRankPart) -> None:
        ranks, width = part.ranks.stop - part.ranks.start, part.columns.stop - part.columns.start
        self.most_part_ranks = max(self.most_part_ranks, _power_of_two(ranks))
        for segment in self._segments(part):
            fields = entry[HEADER + FIELDS * segment :]
            skipped = self.segments[segment].start - part.columns.start
            fields[UP] = part.up.data_ptr() + skipped * part.up.itemsize
            fields[FIRST], fields[COUNT], fields[STRIDE] = part.ranks.start, ranks, width
            scales[segment] = part.scale

    def _segments(self, part: LowRankPart) -> list[int]:
        start, stop = part.columns.start, part.columns.stop
        return [number for number, one in enumerate(self.segments) if start <= one.start and one.stop <= stop]


AddLowRank = Callable[[Tensor, Tensor, LowRankTable, Tensor], None]
"""See ``add_low_rank``."""


def add_low_rank(x: Tensor, y: Tensor, table: LowRankTable, which: Tensor) -> None:
    """Add to each row of ``y`` what its adapter makes of the row of ``x``, computed in float32 and rounded once.

    A replacement reads ``table`` when it runs on the device, not when it is called: it may be captured.

    Args:
        x: ``[N, in]``.
        y: ``[N, out]``, changed in place.
        table: the layer's.
        which: ``[N]`` int64, the place of each row's adapter; 0: none.
    """
    wide = x.float()
    for place, adapter in table.held.items():
        own = (which == place)[:, None]
        for part in adapter.parts:
            inner = part.scale * (wide @ adapter.down[part.ranks].float().T)
            columns = y[:, part.columns]
            columns.copy_(torch.where(own, columns.float() + inner @ part.up.float(), columns))


def segments_of(parts: Mapping[str, slice]) -> list[slice]:
    """The smallest of some columns' ranges that all others consist of."""
    edges = sorted({edge for one in parts.values() for edge in (one.start, one.stop)})
    return [slice(start, stop) for start, stop in zip(edges, edges[1:], strict=False)]


def _power_of_two(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()
