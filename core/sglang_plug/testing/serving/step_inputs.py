"""Checks of what a step extension does to prompts, memory and the inputs of steps; see ``check_step_extension``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch

from sglang_plug.contracts.extension.memory_phases import MemoryRequest, StatePhase
from sglang_plug.contracts.extension.views import PromptLayout, SequenceView
from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.scheduling.scheduled_chunk import ScheduledChunk

ROOM = 1 << 30
INPUTS = ("multimodal", "recurrent")
"""The fields of a batch that ``prepare`` may set."""


def allocate_memory(points: ExtensionPoints) -> int | None:
    """Let the extensions allocate their memory as at the start; return the most sequences that can run."""
    limits = []
    for extension in points.memory:
        for room in (None, float(ROOM)):
            request = extension.memory_request(room)
            assert request is None or isinstance(request, MemoryRequest), "memory_request() must return a MemoryRequest"
            assert request is None or 0 <= request.bytes <= ROOM, (
                f"memory_request() takes {request.bytes} of {ROOM} bytes"
            )
            extension.allocate(None)
            if request is not None:
                extension.allocate(request)
        most = extension.most_running()
        assert most is None or most > 0, f"most_running() must be None or above 0, not {most}"
        limits += [] if most is None else [most]
    return min(limits, default=None)


def check_largest_request(points: ExtensionPoints, most: int) -> None:
    """Check that the request for the profiling run is not longer than ``most`` tokens."""
    for largest_request in points.largest_request:
        request = largest_request(most)
        assert request is None or 0 < len(request.tokens) <= most, (
            f"largest_request({most}) returned a prompt of {len(request.tokens)} tokens"
        )


def check_layout(layout: PromptLayout, sequence: SequenceView) -> None:
    """Check that a layout is one of all tokens of the prompt, and of those that follow."""
    length = sequence.prompt_len
    assert len(layout.cache_tokens) == length, (
        f"cache_tokens has {len(layout.cache_tokens)} tokens, and the prompt {length}"
    )
    positions = list(layout.positions(0, length + 2))
    assert len(positions) == length + 2, f"positions(0, {length + 2}) returned {len(positions)} positions"
    for index in range(length + 2):
        assert list(layout.positions(index, index + 1)) == positions[index : index + 1], (
            f"positions({index}, {index + 1}) is not a part of positions(0, {length + 2})"
        )
    for end in range(length + 1):
        found = layout.chunk_end(end)
        assert end <= found <= length, f"chunk_end({end}) returned {found} in a prompt of {length} tokens"
        assert layout.chunk_end(found) == found, f"chunk_end({end}) returned {found}, where no chunk may end"
        assert 0 <= layout.reusable(end) <= end, f"reusable({end}) returned {layout.reusable(end)}"


def check_inputs(points: ExtensionPoints, chunks: Sequence[ScheduledChunk]) -> None:
    """Let the extensions prepare a step as the runner does; check that they change nothing else of the batch."""
    for before_forward in points.before_forward:
        before_forward(chunks)
    if points.prepare:
        batch = forward_batch(chunks)
        before = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in INPUTS}
        for prepare in points.prepare:
            prepare(chunks, batch)
        changed = [name for name, value in before.items() if getattr(batch, name) is not value]
        assert not changed, f"prepare() changed {', '.join(changed)} of the batch; it may set {' and '.join(INPUTS)}"
        points.rank_steps(chunks, batch)
    for extension in points.static_inputs:
        for chunk in chunks:
            number = extension.static_input(chunk)
            assert isinstance(number, int) and number >= 0, f"static_input() must return a number, not {number!r}"
    for after_forward in points.after_forward:
        after_forward(chunks)


def forward_batch(chunks: Sequence[ScheduledChunk]) -> ForwardBatch:
    """Return the inputs of a step, whose tokens are all 0."""
    positions = [position for chunk in chunks for position in chunk.positions]
    slots = [slot for chunk in chunks for slot in chunk.sequence.slots[chunk.start : chunk.draft_end]]
    return ForwardBatch(
        input_ids=torch.zeros(len(slots), dtype=torch.int64),
        positions=torch.tensor(positions),
        slots=torch.tensor(slots),
        tables=torch.zeros(len(chunks), max(chunk.draft_end for chunk in chunks), dtype=torch.int64),
        query_lens=[chunk.width for chunk in chunks],
        kv_lens=[chunk.draft_end for chunk in chunks],
    )


class CheckedStates(StatePhase):
    """Checks the results of an extension that owns memory of sequences."""

    def __init__(self, states: StatePhase) -> None:
        self._states = states
        self.owners = set[str]()
        """Ids of the requests that have a state."""

    def reusable(self, sequence: SequenceView, length: int) -> int:
        reusable = self._states.reusable(sequence, length)
        assert 0 <= reusable <= length, f"reusable() returned {reusable} of {length} tokens"
        again = self._states.reusable(sequence, reusable)
        assert again == reusable, f"reusable() returned {reusable}, and of {reusable} tokens {again}"
        return reusable

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        acquired = self._states.acquire(sequence, start, cached)
        if acquired:
            self.owners.add(sequence.request.id)
        return acquired

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        found = self._states.chunk_end(sequence, start, end)
        assert start < found <= end, f"chunk_end() returned {found} for tokens from {start} to {end}"
        return found

    def planned(self, sequence: SequenceView, end: int) -> None:
        self._states.planned(sequence, end)

    def committed(self, sequence: SequenceView) -> None:
        self._states.committed(sequence)

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        self.owners.remove(sequence.request.id)
        length = self._states.release(sequence, keep)
        most = max(sequence.computed, min(len(sequence.tokens), len(sequence.slots)))
        assert length is None or sequence.computed <= length <= most, (
            f"release() returned {length}; {sequence.computed} tokens are computed, and {most} may be"
        )
        return length


class SometimesFull(StatePhase):
    """Has no room for a state at every third attempt, so that others must take theirs back."""

    def __init__(self) -> None:
        self._attempts = 0

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        self._attempts += 1
        return self._attempts % 3 != 0
