"""What rank 0 tells the others, so that they compute their parts of the same steps.

A step goes out as plain data before rank 0 computes it: lengths, tokens, and of each sequence's slots only what the
step before did not have. Tokens that only the device knows, and states of images, follow by the collectives. Nothing is
told back: what a follower has to say of its work is in the collectives, and its end is noticed by the team.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from itertools import chain

import msgspec
import torch

from sglang_plug.batch import ForwardBatch
from sglang_plug.executor import Collectives, Team

from .sequence import Sequence
from .shares import Share

LOOK = 0.2
"""Seconds between two looks at whether all ranks are there."""
NOTICED = 1.0
"""Seconds in which the end of a follower shows."""


class ToldSeen(msgspec.Struct, frozen=True):
    """The shape of a step's ``Seen``, whose tensors follow."""

    states: tuple[int, ...]
    coordinates: tuple[int, ...] | None
    whole: list[tuple[int, int, int, int]]
    """Sequence, row, place and count of each."""


class Pool(msgspec.Struct, tag="pool", frozen=True):
    """Make a KV pool, in the place of the one before."""

    slots: int


class Step(msgspec.Struct, tag="step", frozen=True):
    """Compute the next tokens of sequences; arrays are int64, in the host's byte order."""

    before: list[int]
    """Which sequence of the step before each one is; -1: none."""
    kept: list[int]
    """Leading slots that it has from then."""
    slots: bytes
    """The others of each up to its end, one after the other."""
    starts: list[int]
    counts: list[int]
    positions: bytes
    tokens: bytes | None
    """``None``: they follow from the device."""
    seen: ToldSeen | None = None
    adapters: list[int] | None = None
    """The number of each sequence's, 0: none; ``None``: no sequence has one."""


class Head(msgspec.Struct, tag="head", frozen=True):
    """Compute logits of some rows of the last step's hidden states."""

    rows: bytes | tuple[int, int]
    """Their numbers, or from where to where."""


class Capture(msgspec.Struct, tag="capture", frozen=True):
    """Capture decode steps of some batch sizes as graphs, in this order; a vote follows."""

    most: int
    """The largest size that may be captured."""
    width: int
    """Tokens of the longest context."""
    sizes: list[int]


class Replay(msgspec.Struct, tag="replay", frozen=True):
    """Replay the decode step of a batch size."""

    size: int
    inputs: bytes
    """``[6, size]`` int64: see ``graph_inputs``."""
    tables: list[tuple[int, bytes]]
    """Rows that begin with other slots than before, and these."""
    known: bool
    """Whether the tokens are among the inputs; if not, they follow from the device."""


class LoadAdapter(msgspec.Struct, tag="load adapter", frozen=True):
    """Load this rank's part of an adapter, and keep it if all ranks could."""

    number: int
    path: str


class ForgetAdapter(msgspec.Struct, tag="forget adapter", frozen=True):
    """No step will have this adapter any more."""

    number: int


class Weights(msgspec.Struct, tag="weights", frozen=True):
    """Load the weights of another checkpoint, and take them if all ranks could."""

    source: str
    revision: str | None


class End(msgspec.Struct, tag="end", frozen=True):
    """Nothing more will come."""


ToFollower = Pool | Step | Head | Capture | Replay | LoadAdapter | ForgetAdapter | Weights | End


class Ranks:
    """The other ranks, as the engine uses them."""

    def __init__(self, team: Team) -> None:
        self._team, self.collectives = team, team.collectives
        self._encoder = msgspec.msgpack.Encoder()
        self._last: dict[int, tuple[int, Sequence, int, int]] = {}
        self._closed = threading.Event()

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call ``lost`` once, from another thread, when a follower is gone that was not told to end."""

        def run() -> None:
            while not self._closed.wait(LOOK):
                failure = self._team.failure()
                if failure is not None and not self._closed.is_set():
                    lost(failure)
                    return

        threading.Thread(target=run, name="ranks", daemon=True).start()

    def lost(self) -> str | None:
        """Whether a step failed because a follower is gone, and why; its end may show a little later."""
        deadline = time.monotonic() + NOTICED
        while (failure := self._team.failure()) is None and time.monotonic() < deadline:
            time.sleep(LOOK / 10)
        return failure

    def pool(self, slots: int) -> None:
        """Let them make their parts of a KV pool."""
        self._last = {}
        self._tell(Pool(slots))

    def step(self, shares: Ordered[Share], batch: ForwardBatch, *, known: bool) -> None:
        """Let them compute ``batch``, which was built of ``shares``; ``known``: the host knows all of its tokens."""
        before, kept, slots = list[int](), list[int](), array("q")
        last: dict[int, tuple[int, Sequence, int, int]] = {}
        for number, share in enumerate(shares):
            sequence = share.sequence
            row, _, placement, length = self._last.get(id(sequence), (-1, sequence, -1, 0))
            length = min(length, share.start)  # what was behind it may have been a draft's
            if placement != sequence.placement:
                row, length = -1, 0
            before.append(row)
            kept.append(length)
            slots += sequence.slots[length : share.reach]
            last[id(sequence)] = number, sequence, sequence.placement, share.reach
        self._last = last
        seen = batch.seen
        step = Step(
            before,
            kept,
            slots.tobytes(),
            [share.start for share in shares],
            [share.width for share in shares],
            _bytes(chain.from_iterable(share.positions for share in shares)),
            _bytes(chain.from_iterable(map(_tokens, shares))) if known else None,
            None
            if seen is None
            else ToldSeen(
                tuple(seen.states.shape),
                None if seen.coordinates is None else tuple(seen.coordinates.shape),
                [(one.sequence, one.row, one.place, one.count) for one in seen.whole],
            ),
            _adapters(shares),
        )
        self._tell(step)
        if not known:
            self.collectives.broadcast(batch.input_ids)
        if seen is not None:
            for tensor in (seen.rows, seen.states, seen.coordinates):
                if tensor is not None:
                    self.collectives.broadcast(tensor.contiguous())

    def head(self, rows: Ordered[int] | slice) -> None:
        """Let them compute logits of ``rows`` of the last step's hidden states."""
        self._tell(Head((rows.start, rows.stop) if isinstance(rows, slice) else _bytes(rows)))

    def capture(self, wanted: Capture) -> None:
        """Let them capture the same graphs; ``agreed`` must follow."""
        self._tell(wanted)

    def replay(self, step: Replay) -> None:
        """Let them replay the same graph."""
        self._tell(step)

    def load_adapter(self, number: int, path: str) -> None:
        """Let them load an adapter; ``agreed`` must follow."""
        self._tell(LoadAdapter(number, path))

    def forget_adapter(self, number: int) -> None:
        """Let them forget an adapter."""
        self._tell(ForgetAdapter(number))

    def weights(self, source: str, revision: str | None) -> None:
        """Let them load weights; ``agreed`` must follow."""
        self._tell(Weights(source, revision))

    def agreed(self, done: bool, device: torch.device) -> bool:
        """Whether every rank could do what all were asked for."""
        return agreed(done, self.collectives, device)

    def close(self) -> None:
        """End them."""
        if not self._closed.is_set():
            self._closed.set()
            self._tell(End())
            self._team.close()

    def _tell(self, message: ToFollower) -> None:
        self._team.send(self._encoder.encode(message))


def agreed(done: bool, collectives: Collectives, device: torch.device) -> bool:
    """Whether every rank could do what all were asked for; each tells of itself."""
    votes = collectives.all_reduce(torch.tensor([float(done)], device=device))
    return round(votes.item()) == collectives.size


def _tokens(share: Share) -> Iterable[int]:
    return chain(share.sequence.tokens[share.start : share.end], share.drafts)


def _adapters(shares: Ordered[Share]) -> list[int] | None:
    owners = [share.sequence.adapter for share in shares]
    return [0 if one is None else one.number for one in owners] if any(owners) else None


def _bytes(numbers: Ordered[int] | chain[int]) -> bytes:
    return array("q", numbers).tobytes()
