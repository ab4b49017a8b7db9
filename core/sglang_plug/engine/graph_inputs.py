"""The inputs of captured decode steps: described by numbers of the host, then brought to the tensors of the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.batch import ForwardBatch
from sglang_plug.recurrent import SPARE
from sglang_plug.transfer import pinned, upload

from .sequence import Sequence
from .shares import Share

TOKENS, POSITIONS, SLOTS, PLACES, STATES, ADAPTERS = range(6)
"""Rows of a step's inputs."""
KINDS = 6
Tables = Ordered[tuple[int, "array[int]"]]
"""Rows whose slot tables are not those of the step before with one slot more, and these."""


@dataclass(slots=True)
class Held:
    """What a row's table on the device holds: a prefix of one sequence's slots."""

    sequence: Sequence
    placement: int
    length: int

    def precedes(self, share: Share) -> bool:
        """True if ``share``, of one token, needs the same and one slot more."""
        same = self.sequence is share.sequence and self.placement == share.sequence.placement
        return same and self.length == share.start


class GraphInputs:
    """Static inputs of every batch size, and the host's memory that they are brought up to date from.

    Args:
        most: sequences of the largest batch.
        width: slots of the longest table.
        device: where the tensors are.
    """

    def __init__(self, most: int, width: int, device: torch.device) -> None:
        self.most, self.device = most, device
        self._staged = torch.zeros(KINDS, most, dtype=torch.int64)
        self._host = self._staged.numpy()
        self.tensors = torch.zeros(KINDS, most, dtype=torch.int64, device=device)
        self.tables = torch.zeros(most, width, dtype=torch.int64, device=device)
        self.every_row = torch.arange(most + 1, device=device)
        self._held: list[Held | None] = [None] * most

    def forget(self) -> None:
        """What the tables hold is nobody's any more."""
        self._held = [None] * self.most

    def of(self, kind: int, size: int) -> Tensor:
        """``[size]``: one row of the inputs."""
        return self.tensors[kind, :size]

    def rows(self, shares: Ordered[Share], size: int) -> list[int]:
        """A row below ``size`` for each share: the one it has, if it has one."""
        had = {id(held.sequence): row for row, held in enumerate(self._held[:size]) if held is not None}
        rows = [had.get(id(share.sequence), -1) for share in shares]
        taken = set(rows)
        free = (row for row in range(size) if row not in taken)
        return [next(free) if row < 0 else row for row in rows]

    def describe(self, shares: Ordered[Share], rows: Ordered[int]) -> list[tuple[int, array[int]]]:
        """Write the step's inputs to the host's memory; returns the tables that begin anew."""
        held: list[Held | None] = [None] * self.most
        tokens, positions, slots, places, states, adapters = self._host
        self._host[:] = 0
        fresh: list[tuple[int, array[int]]] = []
        for share, row in zip(shares, rows, strict=True):
            sequence, place = share.sequence, share.start
            known = self._held[row]
            if known is None or not known.precedes(share):
                fresh.append((row, sequence.slots[: place + 1]))
                known = Held(sequence, sequence.placement, place)
            known.length = place + 1
            held[row] = known
            places[row], slots[row] = place, sequence.slots[place]
            states[row] = SPARE if sequence.held is None else sequence.held.row
            adapters[row] = 0 if sequence.adapter is None else sequence.adapter.place
            positions[row] = place if sequence.view is None else place + sequence.view.shift
            if not share.unseen:
                tokens[row] = sequence.tokens[place]
        self._held = held
        return fresh

    def told(self, size: int) -> bytes:
        """What ``describe`` wrote of the rows below ``size``."""
        return self._host[:, :size].tobytes()

    def take(self, size: int, told: bytes) -> None:
        """Write to the host's memory what another rank was ``told`` by its own."""
        self._staged.zero_()
        self._staged[:, :size] = torch.frombuffer(bytearray(told), dtype=torch.int64).view(KINDS, size)

    def apply(self, batch: ForwardBatch, fresh: Tables) -> None:
        """Bring the tensors up to date with the host's memory, and with tables that begin anew."""
        size = len(batch.kv_lens)
        for row, slots in fresh:
            whole = torch.frombuffer(slots, dtype=torch.int64)
            self.tables[row, : len(slots)].copy_(pinned(whole, self.device), non_blocking=True)
        batch.kv_lens[:] = [place + 1 for place in self._host[PLACES, :size].tolist()]
        self.tensors.copy_(pinned(self._staged, self.device), non_blocking=True)
        # padding rows write slot 0 to the start of their tables, which nobody holds
        self.tables[self.every_row[:size], self.tensors[PLACES, :size]] = batch.slots

    def give(self, tokens: Tensor, rows: Ordered[int]) -> None:
        """Let the rows' input tokens be ``tokens``, which only the device knows."""
        if rows == list(range(len(rows))):
            self.tensors[TOKENS, : len(rows)].copy_(tokens)
        else:
            self.tensors[TOKENS].index_copy_(0, upload(rows, torch.int64, self.device), tokens)
