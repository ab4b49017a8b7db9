"""The step extension of recurrent states: their pool, the rows of sequences in it, and copies around steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_plug import (
    CachePhase,
    ChunkView,
    ExtensionContext,
    ForwardBatch,
    ForwardPhase,
    InputPhase,
    MemoryPhase,
    MemoryRequest,
    RecurrentInputs,
    SequenceSpans,
    SequenceView,
    ServicePhase,
    StatePhase,
    StatePool,
    StateShape,
    StaticInputPhase,
    StepExtension,
    StoredStatePhase,
)
from sglang_plug_backends.byte_sizes import gigabytes

from .state_rows import StateRows
from .state_sizing import bytes_per_state, make_states, state_rows
from .state_steps import StateSteps, state_row

logger = logging.getLogger(__name__)

TRIAL_ROWS = StatePool.RESERVED
"""Rows of the pool for the profiling run, whose sequences own none."""


class WithoutStates(StepExtension, ServicePhase):
    """Reports that the model has no recurrent states."""

    def info(self) -> Mapping[str, Any]:
        """Report that there are no states."""
        return {"states": None}


@dataclass(frozen=True, slots=True)
class _Allocated:
    """A pool of states: its rows, and the copies around steps."""

    rows: StateRows
    steps: StateSteps


class RecurrentState(
    StepExtension,
    StatePhase,
    StoredStatePhase,
    MemoryPhase,
    CachePhase,
    InputPhase,
    ForwardPhase,
    StaticInputPhase,
    ServicePhase,
):
    """Gives each running sequence a row in the pool of states, and keeps states of cached prefixes.

    Args:
        context: the facts about the engine.
    """

    def __init__(self, context: ExtensionContext) -> None:
        self._context = context
        self._allocated: _Allocated | None = None

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory_request(self, room: float | None) -> MemoryRequest:
        """Return the memory of the pool: as configured, or a part of ``room``."""
        rows = TRIAL_ROWS if room is None else state_rows(self._context, room)
        taken = rows * bytes_per_state(self._context)
        advice = f"{rows} states take {gigabytes(taken)}; lower --max-states or --max-running-requests"
        return MemoryRequest(name="recurrent states", bytes=taken, advice=advice, count=rows)

    def allocate(self, request: MemoryRequest | None) -> None:
        """Allocate the pool; all rows are free."""
        self._allocated = None  # free the memory of the old one first
        if request is None:
            return
        rows = StateRows(request.count, self._context.config.cache.page_size)
        self._allocated = _Allocated(rows, StateSteps(make_states(self._context, request.count)))
        if request.count > TRIAL_ROWS:
            size = gigabytes(request.bytes)
            logger.info(
                "Recurrent states are allocated. #states: %d, size: %s", request.count - StatePool.RESERVED, size
            )

    def max_running(self) -> int | None:
        """Return the number of states."""
        return None if self._allocated is None else self._allocated.rows.capacity

    @property
    def pool(self) -> StatePool:
        """The states."""
        return self._states.steps.pool

    @property
    def _states(self) -> _Allocated:
        assert self._allocated is not None, "allocate() is called before any sequence is admitted"
        return self._allocated

    # -- states of sequences --------------------------------------------------------------------------------------

    def reusable(self, sequence: SequenceView, length: int) -> int:
        """Return the length of the longest prefix of at most ``length`` tokens whose state is cached."""
        return self._states.rows.reusable(sequence, length)

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        """Give the sequence a row; return False if there is none."""
        return self._states.rows.acquire(sequence, start, cached)

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        """Let chunks end where the state is to be cached."""
        return self._states.rows.chunk_end(sequence, start, end)

    def planned(self, sequence: SequenceView, end: int) -> None:
        """Reserve a row if the state at ``end`` is to be cached."""
        self._states.rows.planned(sequence, end)

    def committed(self, sequence: SequenceView) -> None:
        """Cache the state that was copied after the step, if any."""
        self._states.rows.committed(sequence)

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        """Take the sequence's rows; cache its last state if ``keep``."""
        return self._states.rows.release(sequence, keep)

    def reset(self) -> None:
        """Drop the states of all cached prefixes."""
        self._states.rows.reset()

    def check(self) -> None:
        """Raise ``AssertionError`` if a row was lost or is owned twice."""
        self._states.rows.check()

    # -- states that are stored outside of the pool ---------------------------------------------------------------

    def stored_tensors(self, multiple: int) -> Ordered[StateShape]:
        """Return the shapes of the states, which are cached at multiples of ``multiple`` tokens from now on."""
        self._states.rows.store_at(multiple)
        dtype = self._context.dtype
        return [StateShape(shape=state.shape, dtype=state.dtype or dtype) for state in self._context.states]

    def copy_state(self, sequence: SequenceView, length: int) -> Ordered[Tensor]:
        """Queue copies of the cached state after the first ``length`` tokens."""
        states = self._states
        row = states.rows.saved(sequence, length)
        return () if row is None else states.steps.copy_out(row)

    def restore_state(self, sequence: SequenceView, length: int, tensors: Ordered[Tensor]) -> bool:
        """Cache the state after the first ``length`` tokens, if there is a row for it."""
        states = self._states
        if states.rows.saved(sequence, length) is not None:
            return True
        states.steps.begin(states.rows.started)  # some of these sequences may begin with the state whose row is taken
        row = states.rows.restore(sequence, length)
        if row is not None:
            states.steps.copy_in(row, tensors)
        return row is not None

    # -- steps ----------------------------------------------------------------------------------------------------

    def before_forward(self, chunks: Ordered[ChunkView]) -> None:
        """Queue copies of initial states."""
        states = self._states
        if started := states.rows.started:
            states.steps.begin(started)

    def after_forward(self, chunks: Ordered[ChunkView]) -> None:
        """Queue copies of states that are to be cached."""
        self._states.steps.end(chunks)

    def prepare(self, chunks: Ordered[ChunkView], batch: ForwardBatch) -> None:
        """Set the states of the step's sequences."""
        batch.recurrent = self._states.steps.of(chunks, batch.query_lens)

    def static_input(self, chunk: ChunkView) -> int:
        """Return the row of the chunk's state; padding has the spare row, 0."""
        return state_row(chunk)

    def prepare_captured(self, batch: ForwardBatch, numbers: Tensor) -> None:
        """Let the captured step use the states in the rows ``numbers``."""
        size = len(numbers)
        starts = torch.arange(size + 1, device=numbers.device)
        batch.recurrent = RecurrentInputs(self.pool, SequenceSpans(numbers, [1] * size, starts))

    def info(self) -> Mapping[str, Any]:
        """Report the number of rows by owner."""
        return {"states": None if self._allocated is None else self._allocated.rows.accounts()}


def build(context: ExtensionContext) -> StepExtension:
    """Return the extension; one that does nothing if the model has no recurrent states."""
    return RecurrentState(context) if context.states else WithoutStates()
