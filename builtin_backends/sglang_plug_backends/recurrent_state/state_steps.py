"""Copies of recurrent states around a step: initial states before it, states to be cached after it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug import ChunkView, RecurrentInputs, SequenceSpans, StatePool, upload

from .state_rows import HeldState, held_state


class StateSteps:
    """Queues copies of states before and after each step.

    They are queued in the order in which steps were planned, so that a row may go to another sequence as soon as
    ``StateRows`` gives it away.
    """

    def __init__(self, pool: StatePool) -> None:
        self.pool = pool

    def begin(self, started: list[HeldState]) -> None:
        """Queue copies of the initial states of sequences that were given rows since the last call; empty the list."""
        held = [state for state in started if state.origin is not None]
        started.clear()
        if not held:
            return
        self._copy([holder.origin or 0 for holder in held], [holder.row for holder in held])
        for holder in held:
            holder.origin = None

    def of(self, chunks: Ordered[ChunkView], lengths: list[int]) -> RecurrentInputs:
        """Return the states of ``chunks``, which compute ``lengths`` tokens."""
        rows = list(map(state_row, chunks))
        return RecurrentInputs(self.pool, SequenceSpans.of(rows, lengths, self.pool.device))

    def end(self, chunks: Ordered[ChunkView]) -> None:
        """Queue copies after a step: of the states at indices that are to be cached."""
        sources, targets = [], []
        for chunk in chunks:
            held = held_state(chunk.sequence)
            if held is None:
                continue
            held.reached = chunk.end
            if chunk.end in held.kept:
                sources.append(held.row)
                targets.append(held.kept[chunk.end])
        if sources:
            self._copy(sources, targets)

    def copy_out(self, row: int) -> list[Tensor]:
        """Queue copies of the state in ``row``, and return them."""
        with torch.inference_mode():
            return [state[row].clone() for state in self.pool.states]

    def copy_in(self, row: int, tensors: Ordered[Tensor]) -> None:
        """Queue copies of a state from the host to ``row``."""
        with torch.inference_mode():
            for state, tensor in zip(self.pool.states, tensors, strict=True):
                state[row].copy_(tensor, non_blocking=True)

    def _copy(self, sources: list[int], targets: list[int]) -> None:
        device = self.pool.device
        self.pool.copy(upload(sources, torch.int64, device), upload(targets, torch.int64, device))


def state_row(chunk: ChunkView) -> int:
    """Return the row of the chunk's state; the spare one in the profiling run, where sequences own none."""
    held = held_state(chunk.sequence)
    return StatePool.PADDING if held is None else held.row
