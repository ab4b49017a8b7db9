"""Messages from rank 0 to the worker ranks, so that they compute their parts of the same steps.

A step is sent as plain data before rank 0 computes it: lengths, tokens, and of each sequence's slots only those that
the previous step did not have. Tokens that only the device knows, and tensors of step extensions, follow by the
collectives.
There are no replies: a worker rank's results are in the collectives, and the rank group notices when it ends.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Ordered
from itertools import chain
from types import MappingProxyType

import msgspec
import torch

from sglang_plug.contracts.extension.step_phases import RankStep
from sglang_plug.contracts.model.batch import ForwardBatch
from sglang_plug.contracts.serving.executor import Collectives, RankGroup
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence

CHECK_SECONDS = 0.2
"""Seconds between two checks that all ranks are alive."""
LOST_RANK_SECONDS = 1.0
"""Seconds within which the end of a worker rank is noticed."""
NO_EXTENSION_STEPS: Mapping[str, RankStep] = MappingProxyType({})


class ExtensionStep(msgspec.Struct, frozen=True):
    """A ``RankStep`` of a step extension, whose tensors follow."""

    data: bytes
    tensors: list[tuple[str, tuple[int, ...]]]
    """Dtype and shape of each tensor."""

    @classmethod
    def of(cls, step: RankStep) -> ExtensionStep:
        """Describe ``step``."""
        return cls(
            step.data, [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in step.tensors]
        )

    def receive(self, collectives: Collectives, device: torch.device) -> RankStep:
        """Receive the tensors on a worker rank."""
        tensors = []
        for dtype, shape in self.tensors:
            tensors.append(torch.empty(shape, dtype=getattr(torch, dtype), device=device))
            collectives.broadcast(tensors[-1])
        return RankStep(self.data, tuple(tensors))


class Pool(msgspec.Struct, tag="pool", frozen=True):
    """Allocate a KV pool, instead of the previous one."""

    slots: int
    max_context: int
    """Tokens of the longest context that the pool has room for."""


class ReturnMemory(msgspec.Struct, tag="return memory", frozen=True):
    """Return the memory of unused slots of the pool."""

    runs: list[tuple[int, int]]


class Step(msgspec.Struct, tag="step", frozen=True):
    """Compute the next tokens of sequences; arrays are int64, in the host's byte order."""

    before: list[int]
    """The index of each sequence in the previous step; -1: it was not there."""
    kept: list[int]
    """Number of leading slots that each sequence keeps from the previous step."""
    slots: bytes
    """The other slots of each sequence up to its end, one sequence after the other."""
    starts: list[int]
    counts: list[int]
    positions: bytes
    tokens: bytes | None
    """The tokens of all sequences; ``None``: they follow from the device."""
    extensions: dict[str, ExtensionStep] = {}
    """Data of the step for step extensions, by name."""


class Head(msgspec.Struct, tag="head", frozen=True):
    """Compute logits of some rows of the last step's hidden states."""

    rows: bytes | tuple[int, int]
    """The indices of the rows, or start and exclusive end."""


class ExtensionCommand(msgspec.Struct, tag="extension", frozen=True):
    """Let a step extension follow a command of its own."""

    name: str
    """The extension's."""
    command: bytes


class Weights(msgspec.Struct, tag="weights", frozen=True):
    """Load the weights of another checkpoint, and use them if all ranks could."""

    source: str
    revision: str | None


class End(msgspec.Struct, tag="end", frozen=True):
    """End the worker rank; this is the last message."""


ToWorkerRank = Pool | ReturnMemory | Step | Head | ExtensionCommand | Weights | End


class Ranks:
    """The worker ranks, as seen by the engine on rank 0."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.collectives = group.collectives
        self._encoder = msgspec.msgpack.Encoder()
        self._last: dict[int, tuple[int, Sequence, int, int]] = {}
        self._closed = threading.Event()

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call ``lost`` once, from another thread, when a worker rank ends unexpectedly."""

        def run() -> None:
            while not self._closed.wait(CHECK_SECONDS):
                failure = self._group.failure()
                if failure is not None and not self._closed.is_set():
                    lost(failure)
                    return

        threading.Thread(target=run, name="ranks", daemon=True).start()

    def lost(self) -> str | None:
        """Return the reason if a worker rank has ended, which may explain a failed step; waits a second for it."""
        deadline = time.monotonic() + LOST_RANK_SECONDS
        while (failure := self._group.failure()) is None and time.monotonic() < deadline:
            time.sleep(CHECK_SECONDS / 10)
        return failure

    def pool(self, slots: int, max_context: int) -> None:
        """Let the worker ranks allocate their parts of a KV pool, with room for contexts of ``max_context`` tokens."""
        self._last = {}
        self._broadcast(Pool(slots, max_context))

    def return_memory(self, runs: Iterable[tuple[int, int]]) -> None:
        """Let the worker ranks return the memory of these runs of slots."""
        self._broadcast(ReturnMemory(list(runs)))

    def step(
        self,
        chunks: Ordered[ScheduledChunk],
        batch: ForwardBatch,
        *,
        known: bool,
        extensions: Mapping[str, RankStep] = NO_EXTENSION_STEPS,
    ) -> None:
        """Let the worker ranks compute ``batch``, which was built from ``chunks``.

        ``known``: the host knows all of its tokens; ``extensions``: what step extensions have to know about it.
        """
        before, kept, slots = list[int](), list[int](), array("q")
        last: dict[int, tuple[int, Sequence, int, int]] = {}
        for number, chunk in enumerate(chunks):
            sequence = chunk.sequence
            row, _, slot_version, length = self._last.get(id(sequence), (-1, sequence, -1, 0))
            length = min(length, chunk.start)  # slots after the start may have belonged to drafts
            if slot_version != sequence.slot_version:
                row, length = -1, 0
            before.append(row)
            kept.append(length)
            slots += sequence.slots[length : chunk.draft_end]
            last[id(sequence)] = number, sequence, sequence.slot_version, chunk.draft_end
        self._last = last
        step = Step(
            before,
            kept,
            slots.tobytes(),
            [chunk.start for chunk in chunks],
            [chunk.width for chunk in chunks],
            _bytes(chain.from_iterable(chunk.positions for chunk in chunks)),
            _bytes(chain.from_iterable(map(_tokens, chunks))) if known else None,
            {name: ExtensionStep.of(extension_step) for name, extension_step in extensions.items()},
        )
        self._broadcast(step)
        if not known:
            self.collectives.broadcast(batch.input_ids)
        for extension_step in extensions.values():
            for tensor in extension_step.tensors:
                self.collectives.broadcast(tensor.contiguous())

    def head(self, rows: Ordered[int] | slice) -> None:
        """Let the worker ranks compute logits of ``rows`` of the last step's hidden states."""
        self._broadcast(Head((rows.start, rows.stop) if isinstance(rows, slice) else _bytes(rows)))

    def extension_command(self, name: str, command: bytes) -> None:
        """Let the step extension ``name`` follow a command on the worker ranks."""
        self._broadcast(ExtensionCommand(name, command))

    def weights(self, source: str, revision: str | None) -> None:
        """Let the worker ranks load weights; ``all_ranks_succeeded`` must follow."""
        self._broadcast(Weights(source, revision))

    def close(self) -> None:
        """End the worker ranks."""
        if not self._closed.is_set():
            self._closed.set()
            try:
                self._broadcast(End())
            finally:
                self._group.close()

    def _broadcast(self, message: ToWorkerRank) -> None:
        self._group.send(self._encoder.encode(message))


def all_ranks_succeeded(done: bool, collectives: Collectives, device: torch.device) -> bool:
    """Return True if every rank succeeded, by a vote; ``done`` says whether this one did."""
    if collectives.size == 1:
        return done
    votes = collectives.all_reduce(torch.tensor([float(done)], dtype=torch.float32, device=device))
    return round(votes.item()) == collectives.size


def _tokens(chunk: ScheduledChunk) -> Iterable[int]:
    return chain(chunk.sequence.tokens[chunk.start : chunk.end], chunk.drafts)


def _bytes(numbers: Ordered[int] | chain[int]) -> bytes:
    return array("q", numbers).tobytes()
