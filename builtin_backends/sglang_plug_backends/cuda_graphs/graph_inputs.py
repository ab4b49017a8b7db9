"""The inputs of captured decode steps: written to host memory first, then copied to tensors of the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from sglang_plug import ChunkView, ForwardBatch, SequenceView, StaticInputPhase, pinned, upload

from .graph_variants import NO_NUMBERS, StepNumbers

TOKENS, POSITIONS, SLOTS, INDICES = range(4)
"""Rows of a step's inputs. The indices of tokens in their sequences are their positions, except with M-RoPE."""
KINDS = 4
"""Number of those rows. One for each step extension with a static input follows, then one for each in ``GraphPhase``;
steps on several ranks do not use them."""
Tables = Ordered[tuple[int, "array[int]"]]
"""Rows whose slot tables are not the previous step's with one slot more, and their new tables."""


@dataclass(slots=True)
class Held:
    """The contents of a row's table on the device: a prefix of one sequence's slots."""

    sequence: ReferenceType[SequenceView]
    """Weak: the last step's sequences may have ended, and there may be no next step."""
    slot_version: int
    length: int

    def precedes(self, chunk: ChunkView) -> bool:
        """True if ``chunk``, of one token, needs the same table and one slot more."""
        same = self.sequence() is chunk.sequence and self.slot_version == chunk.sequence.slot_version
        return same and self.length == chunk.start


class GraphInputs:
    """Static inputs of every batch size, and the host memory from which they are updated.

    Args:
        max_size: sequences of the largest batch.
        width: slots of the longest table.
        device: the device of the tensors.
        static_inputs: the step extensions with an input of every captured step.
        extensions: number of step extensions that have variants.
    """

    def __init__(
        self,
        max_size: int,
        width: int,
        device: torch.device,
        static_inputs: Ordered[StaticInputPhase] = (),
        extensions: int = 0,
    ) -> None:
        self.max_size, self.device, self.static_inputs = max_size, device, tuple(static_inputs)
        self.first_variant = KINDS + len(self.static_inputs)
        """Row of the first extension that has variants."""
        kinds = self.first_variant + extensions
        self._staged = torch.zeros(kinds, max_size, dtype=torch.int64)
        self._host = self._staged.numpy()
        self.tensors = torch.zeros(kinds, max_size, dtype=torch.int64, device=device)
        self.tables = torch.zeros(max_size, width, dtype=torch.int64, device=device)
        self.every_row = torch.arange(max_size + 1, device=device)
        self._held: list[Held | None] = [None] * max_size

    def forget(self) -> None:
        """Mark the contents of all tables as invalid."""
        self._held = [None] * self.max_size

    def of(self, kind: int, size: int) -> Tensor:
        """Return ``[size]``: one row of the inputs."""
        return self.tensors[kind, :size]

    def of_variant(self, size: int, index: int) -> Tensor:
        """Return ``[size]``: the numbers of the extension ``index`` of those that have variants."""
        return self.of(self.first_variant + index, size)

    def rows(self, chunks: Ordered[ChunkView], size: int) -> list[int]:
        """Return a row below ``size`` for each chunk: the row its sequence has already, or else a free one."""
        had = {id(held.sequence()): row for row, held in enumerate(self._held[:size]) if held is not None}
        rows = [had.get(id(chunk.sequence), -1) for chunk in chunks]
        taken = set(rows)
        free = (row for row in range(size) if row not in taken)
        return [next(free) if row < 0 else row for row in rows]

    def describe(
        self, chunks: Ordered[ChunkView], rows: Ordered[int], numbers: StepNumbers = NO_NUMBERS
    ) -> list[tuple[int, array[int]]]:
        """Write the step's inputs to host memory; return the tables that must be copied as a whole."""
        held: list[Held | None] = [None] * self.max_size
        tokens, positions, slots, indices = self._host[:KINDS]
        self._host[:] = 0
        fresh: list[tuple[int, array[int]]] = []
        for chunk, row in zip(chunks, rows, strict=True):
            sequence, index = chunk.sequence, chunk.start
            known = self._held[row]
            if known is None or not known.precedes(chunk):
                fresh.append((row, sequence.slots[: index + 1]))
                known = Held(ref(sequence), sequence.slot_version, index)
            known.length = index + 1
            held[row] = known
            indices[row], slots[row] = index, sequence.slots[index]
            positions[row] = index
            if sequence.layout is not None:
                (positions[row],) = chunk.positions
            if not chunk.pending_on_device:
                tokens[row] = sequence.tokens[index]
        for kind, extension in enumerate(self.static_inputs, KINDS):
            self._host[kind, rows] = list(map(extension.static_input, chunks))
        for index in numbers.variant:
            self._host[self.first_variant + index, rows] = numbers.rows[index]
        self._held = held
        return fresh

    def encoded(self, size: int) -> bytes:
        """Return the inputs that ``describe`` wrote for the rows below ``size``."""
        return self._host[:KINDS, :size].tobytes()

    def take(self, size: int, inputs: bytes) -> None:
        """Write ``inputs``, the inputs that another rank described, to host memory."""
        self._staged.zero_()
        self._staged[:KINDS, :size] = torch.frombuffer(bytearray(inputs), dtype=torch.int64).view(KINDS, size)

    def apply(self, batch: ForwardBatch, fresh: Tables) -> None:
        """Copy the inputs from host memory to the tensors, and the ``fresh`` tables as a whole."""
        size = len(batch.kv_lens)
        for row, slots in fresh:
            whole = torch.frombuffer(slots, dtype=torch.int64)
            self.tables[row, : len(slots)].copy_(pinned(whole, self.device), non_blocking=True)
        batch.kv_lens[:] = [index + 1 for index in self._host[INDICES, :size].tolist()]
        self.tensors.copy_(pinned(self._staged, self.device), non_blocking=True)
        # padding rows write slot 0 to the start of their tables, which no sequence holds
        self.tables[self.every_row[:size], self.tensors[INDICES, :size]] = batch.slots

    def give(self, tokens: Tensor, rows: Ordered[int]) -> None:
        """Set the rows' input tokens to ``tokens``, which only the device knows."""
        if rows == list(range(len(rows))):
            self.tensors[TOKENS, : len(rows)].copy_(tokens)
        else:
            self.tensors[TOKENS].index_copy_(0, upload(rows, torch.int64, self.device), tokens)
