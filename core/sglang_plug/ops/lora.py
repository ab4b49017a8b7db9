"""Low-rank products that adapters add to those of layers, in a table that kernels read on the device.

A captured step always reads the same tensors. The adapters, and the adapter of each row, are therefore data in tensors:
each layer's table has an entry for each adapter slot with the addresses of the adapter's matrices, and a step has the
slot of each of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .host_device_copy import pinned


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankPart:
    """The product that an adapter adds to some columns."""

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
MIN_RANKS = 64
"""Number of ranks that a table supports from the beginning; a power of two."""
DOWN, RANKS, HEADER = 0, 1, 2
UP, FIRST, COUNT, STRIDE, FIELDS = 0, 1, 2, 3, 4
"""Columns of ``LowRankTable.entries``: address and row count of ``down``; then for each segment the address of its
first number in ``up``, its first rank, its number of ranks, and the stride of its rows."""


class LowRankTable:
    """The adapters of one layer, by slot.

    Args:
        segments: columns of the product that are adapted together, in order and without overlap.
        size_in: columns of the layer's matrix.
        slots: number of adapter slots, without slot 0, which has no adapter.
        dtype: dtype of all matrices.
        device: device of all tensors.
    """

    def __init__(
        self, segments: Sequence[slice], size_in: int, *, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.segments, self.size_in, self.dtype, self.device = tuple(segments), size_in, dtype, device
        self.width = max(segment.stop - segment.start for segment in segments)
        self.max_ranks = self.max_part_ranks = MIN_RANKS
        """Powers of two: the greatest number of ranks of an adapter, and of one of its segments."""
        self.held: dict[int, LowRank] = {}
        width = HEADER + FIELDS * len(self.segments)
        self._host_entries = torch.zeros(1 + slots, width, dtype=torch.int64)
        self._host_scales = torch.zeros(1 + slots, len(self.segments), dtype=torch.float32)
        self.entries = torch.zeros(1 + slots, width, dtype=torch.int64, device=device)
        """``[slots + 1, 2 + 4 * segments]``; keeps its address."""
        self.scales = torch.zeros(1 + slots, len(self.segments), dtype=torch.float32, device=device)
        """``[slots + 1, segments]`` float32; keeps its address."""
        bounds = [[segment.start for segment in segments], [segment.stop for segment in segments]]
        self.bounds = torch.tensor(bounds, dtype=torch.int32).to(device)
        """``[2, segments]`` int32: begin and end of each segment."""

    def fits(self, adapter: LowRank) -> bool:
        """Return True if ``put`` accepts ``adapter``: its matrices are aligned, and its parts are disjoint unions of
        segments.
        """
        matrices = [adapter.down, *(part.up for part in adapter.parts)]
        if not all(
            matrix.is_contiguous() and matrix.dtype == self.dtype and matrix.device == self.entries.device
            for matrix in matrices
        ):
            return False
        starts = [segment.start * self.dtype.itemsize for segment in self.segments]
        rows = [matrix.shape[1] * self.dtype.itemsize for matrix in matrices]
        if any(offset % ALIGNMENT for offset in (*starts, *rows, *(matrix.data_ptr() for matrix in matrices))):
            return False
        own = [segment for part in adapter.parts for segment in self._segments(part)]
        covered = sum(self.segments[index].stop - self.segments[index].start for index in own)
        adapted = sum(part.columns.stop - part.columns.start for part in adapter.parts)
        return len(set(own)) == len(own) and covered == adapted

    def put(self, slot: int, adapter: LowRank | None) -> None:
        """Use ``adapter``, or none, for rows with slot ``slot``, from 1 on. Work that is already queued is not
        affected. ``adapter`` must fit.
        """
        entry, scales = self._host_entries[slot].zero_(), self._host_scales[slot].zero_()
        self.held.pop(slot, None)
        if adapter is not None:
            self.held[slot] = adapter
            entry[DOWN], entry[RANKS] = adapter.down.data_ptr(), len(adapter.down)
            self.max_ranks = max(self.max_ranks, _power_of_two(len(adapter.down)))
            for part in adapter.parts:
                self._enter(entry, scales, part)
        self.entries.copy_(pinned(self._host_entries, self.device), non_blocking=True)
        self.scales.copy_(pinned(self._host_scales, self.device), non_blocking=True)

    def forget(self, slot: int) -> None:
        """Drop the adapter of slot ``slot``, which no row may use before the next ``put`` there.

        Queues no work on the device, so any thread may call it at any time.
        """
        self.held.pop(slot, None)

    def _enter(self, entry: Tensor, scales: Tensor, part: LowRankPart) -> None:
        ranks, width = part.ranks.stop - part.ranks.start, part.columns.stop - part.columns.start
        self.max_part_ranks = max(self.max_part_ranks, _power_of_two(ranks))
        for segment in self._segments(part):
            fields = entry[HEADER + FIELDS * segment :]
            skipped = self.segments[segment].start - part.columns.start
            fields[UP] = part.up.data_ptr() + skipped * part.up.itemsize
            fields[FIRST], fields[COUNT], fields[STRIDE] = part.ranks.start, ranks, width
            scales[segment] = part.scale

    def _segments(self, part: LowRankPart) -> list[int]:
        start, stop = part.columns.start, part.columns.stop
        return [
            number for number, segment in enumerate(self.segments) if start <= segment.start and segment.stop <= stop
        ]


AddLowRank = Callable[[Tensor, Tensor, LowRankTable, Tensor], None]
"""The type of ``add_low_rank``."""


def add_low_rank(x: Tensor, y: Tensor, table: LowRankTable, which: Tensor) -> None:
    """Add to each row of ``y`` its adapter's product with the row of ``x``, computed in float32 and rounded once.

    A replacement must read ``table`` when it runs on the device, not when it is called: it may be captured.

    Args:
        x: ``[N, in]``.
        y: ``[N, out]``, changed in place.
        table: the layer's.
        which: ``[N]`` int64, the slot of each row's adapter; 0: none.
    """
    wide = x.float()
    for slot, adapter in table.held.items():
        own = (which == slot)[:, None]
        for part in adapter.parts:
            inner = part.scale * (wide @ adapter.down[part.ranks].float().T)
            columns = y[:, part.columns]
            columns.copy_(torch.where(own, columns.float() + inner @ part.up.float(), columns))


def _power_of_two(length: int) -> int:
    return 1 << max(0, length - 1).bit_length()
