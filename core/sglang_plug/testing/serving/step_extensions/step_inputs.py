"""Checks of what a step extension does to prompts, memory and the inputs of steps; see ``check_step_extension``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence as Ordered
from dataclasses import fields

import torch
from torch import Tensor

from sglang_plug.contracts.extension.memory_phases import MemoryRequest, StatePhase
from sglang_plug.contracts.extension.views import PromptLayout, SequenceView
from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.contracts.model.recurrent_state import StateShape
from sglang_plug.contracts.request import Request
from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence

ROOM = 1 << 30
MULTIPLE = 8
"""Tokens of the prefixes whose states are stored."""
INPUTS = ("multimodal", "recurrent")
"""The fields of a batch that ``prepare`` may set."""


def allocate_memory(points: ExtensionPoints) -> int | None:
    """Let the extensions allocate their memory as at the start; return the maximum number of sequences that can run."""
    limits = []
    for extension in points.start.memory:
        for room in (None, float(ROOM)):
            request = extension.memory_request(room)
            assert request is None or isinstance(request, MemoryRequest), "memory_request() must return a MemoryRequest"
            assert request is None or 0 <= request.bytes <= ROOM, (
                f"memory_request() takes {request.bytes} of {ROOM} bytes"
            )
            extension.allocate(None)
            if request is not None:
                extension.allocate(request)
        limit = extension.max_running()
        assert limit is None or limit > 0, f"max_running() must be None or above 0, not {limit}"
        limits += [] if limit is None else [limit]
    return min(limits, default=None)


def check_largest_request(points: ExtensionPoints, limit: int) -> None:
    """Check that the request for the profiling run is not longer than ``limit`` tokens."""
    for largest_request in points.start.largest_request:
        request = largest_request(limit)
        assert request is None or 0 < len(request.tokens) <= limit, (
            f"largest_request({limit}) returned a prompt of {len(request.tokens)} tokens"
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
        chunk_end = layout.chunk_end(end)
        assert end <= chunk_end <= length, f"chunk_end({end}) returned {chunk_end} in a prompt of {length} tokens"
        assert layout.chunk_end(chunk_end) == chunk_end, (
            f"chunk_end({end}) returned {chunk_end}, where no chunk may end"
        )
        assert 0 <= layout.reusable(end) <= end, f"reusable({end}) returned {layout.reusable(end)}"


def check_inputs(points: ExtensionPoints, chunks: Ordered[ScheduledChunk]) -> None:
    """Let the extensions prepare a step as the runner does; check that they change nothing else of the batch."""
    for before_forward in points.forward.before_forward:
        before_forward(chunks)
    if points.forward.prepare:
        batch = forward_batch(chunks)
        before = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name not in INPUTS}
        for prepare in points.forward.prepare:
            prepare(chunks, batch)
        changed = [name for name, value in before.items() if getattr(batch, name) is not value]
        assert not changed, f"prepare() changed {', '.join(changed)} of the batch; it may set {' and '.join(INPUTS)}"
        points.forward.rank_steps(chunks, batch)
    for extension in points.forward.static_inputs:
        for chunk in chunks:
            number = extension.static_input(chunk)
            assert isinstance(number, int) and number >= 0, f"static_input() must return a number, not {number!r}"
    for after_forward in points.forward.after_forward:
        after_forward(chunks)


def forward_batch(chunks: Ordered[ScheduledChunk]) -> ForwardBatch:
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


def check_stored_states(points: ExtensionPoints) -> None:
    """Check that a state that was restored from the host is copied as it was, and for no other sequence."""
    tokens = tuple(range(MULTIPLE + 2))
    sequence, tenant, other = (
        Sequence.of(Request(id=str(number), tokens=prompt, salt=salt), len(tokens))
        for number, (prompt, salt) in enumerate([(tokens, ""), (tokens, "tenant"), (tokens[1:] + (0,), "")])
    )
    for states in points.start.stored_states:
        assert isinstance(states, StatePhase), f"{type(states).__name__} has StoredStatePhase and not StatePhase"
        shapes = states.stored_tensors(MULTIPLE)
        tensors = list(map(_random_state, shapes))
        for candidate in (sequence, tenant, other) if shapes else ():
            assert not states.copy_state(candidate, MULTIPLE), "copy_state() returned a state that was not saved"
        if not shapes or not states.restore_state(sequence, MULTIPLE, tensors):
            continue
        assert (reusable := CheckedStates(states).reusable(sequence, len(tokens) - 1)) == MULTIPLE, (
            f"restore_state() saved a state after {MULTIPLE} tokens, and reusable() returned {reusable}"
        )
        assert states.restore_state(sequence, MULTIPLE, tensors), "restore_state() has no room for what is saved"
        copies = states.copy_state(sequence, MULTIPLE)
        assert list(map(_bits, copies)) == list(map(_bits, tensors)), (
            "copy_state() did not return the tensors that restore_state() saved"
        )
        for candidate in (tenant, other):
            assert not states.copy_state(candidate, MULTIPLE), "copy_state() returned the state of another prefix"
        for reset in points.cache.reset:
            reset()
        assert not states.copy_state(sequence, MULTIPLE), "copy_state() returned a state after reset()"


def check_tensor_stores(points: ExtensionPoints, timeout: float) -> None:
    """Check that a store of tensors returns what was put into it, for the same sequences only, or nothing."""
    tokens = tuple(range(MULTIPLE))
    sequence, tenant = (Sequence.of(Request(id="tensors", tokens=tokens, salt=salt), 100) for salt in ("", "tenant"))
    tensor = _random_state(StateShape(shape=(3, 2), dtype=torch.bfloat16))
    for make in points.start.tensor_store:
        if (store := make()) is None:
            continue
        store.put_tensor(sequence, b"content", tensor)
        for candidate, content in ((sequence, b"content"), (tenant, b"content"), (sequence, b"other")):
            pending = store.load_tensor(candidate, content, MULTIPLE)
            deadline = time.monotonic() + timeout
            while pending is not None and not pending.done:
                assert time.monotonic() < deadline, "load_tensor() returned a tensor that is never done"
                time.sleep(0.001)
            if pending is None or pending.value is None:
                continue
            assert candidate is sequence and content == b"content", (
                "load_tensor() returned the tensor of another content, or of a sequence with another salt"
            )
            assert _bits(pending.value) == _bits(tensor), "load_tensor() did not return the tensor that was put"


class _Arriving:
    """A tensor that is there at the second question. A ``PendingTensor``."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._polls = tensor, 0

    @property
    def done(self) -> bool:
        self._polls += 1
        return self._polls > 1

    @property
    def value(self) -> Tensor | None:
        return self._tensor if self._polls > 1 else None


class RememberedTensors:
    """A ``TensorStore`` in memory, for extensions that use one."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, bytes], Tensor] = {}

    def put_tensor(self, sequence: SequenceView, content: bytes, tensor: Tensor) -> None:
        assert isinstance(content, bytes) and isinstance(tensor, Tensor), "put_tensor() takes bytes and a tensor"
        self._tensors[sequence.salt, content] = tensor.detach().cpu().clone()

    def load_tensor(self, sequence: SequenceView, content: bytes, tokens: int) -> _Arriving | None:
        tensor = self._tensors.get((sequence.salt, content))
        return None if tensor is None else _Arriving(tensor)


def _random_state(shape: StateShape) -> Tensor:
    assert shape.dtype is not None, "stored_tensors() must give every dtype"
    content = torch.randint(0, 256, (math.prod(shape.shape) * shape.dtype.itemsize,), dtype=torch.uint8)
    return content.view(shape.dtype).view(shape.shape)


def _bits(tensor: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return tensor.dtype, tensor.shape, bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist())


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
        chunk_end = self._states.chunk_end(sequence, start, end)
        assert start < chunk_end <= end, f"chunk_end() returned {chunk_end} for tokens from {start} to {end}"
        return chunk_end

    def planned(self, sequence: SequenceView, end: int) -> None:
        self._states.planned(sequence, end)

    def committed(self, sequence: SequenceView) -> None:
        self._states.committed(sequence)

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        self.owners.remove(sequence.request.id)
        length = self._states.release(sequence, keep)
        limit = max(sequence.computed, min(len(sequence.tokens), len(sequence.slots)))
        assert length is None or sequence.computed <= length <= limit, (
            f"release() returned {length}; {sequence.computed} tokens are computed, and {limit} may be"
        )
        return length


class SometimesFull(StatePhase):
    """A pool of states that is full at every third attempt, so that other extensions must release what they
    acquired."""

    def __init__(self) -> None:
        self._attempts = 0

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        self._attempts += 1
        return self._attempts % 3 != 0


def check_model(points: ExtensionPoints, chunks: list[ScheduledChunk]) -> None:
    """Check that a step that an extension surrounds is not replayed without it, nor computed by worker ranks."""
    contexts = points.forward.step_contexts(chunks, [chunk.width for chunk in chunks])
    numbers = [graph.graph_input(chunk) for graph in points.forward.graphs for chunk in chunks]
    assert all(number is None or (isinstance(number, int) and number >= 0) for number in numbers), (
        f"graph_input() must return None or a number from 0 on, not {numbers}"
    )
    assert not contexts or any(number != 0 for number in numbers), (
        "context() returned a context where the numbers of graph_input() are all 0: plain graphs replay such a step"
    )
    if contexts and points.forward.rank_step:
        steps = points.forward.rank_steps(chunks, forward_batch(chunks))
        assert steps, "rank_step() must return a RankStep for each step with a context"
    for context in contexts:
        with context:
            pass
