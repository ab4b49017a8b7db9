"""Ownership of the rows in the pool of recurrent states, and the points where states are copied for the prefix cache.

A row belongs to the free list, to a running sequence, or to a cached prefix. A prefix match is only usable up to its
longest part with a cached state, so the steps of a sequence end where its state is likely to be needed again: at the
end of its prompt, and where it diverges from a prefix that others have computed. Its last state is cached too, in the
row where it is. States of cached prefixes make room for running sequences, the least recently used first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from sglang_plug import SequenceView, StatePhase, StatePool

GRAIN = 64
"""The state at the end of a prompt is cached at a multiple of this many tokens: prompts are often repeated with
another last sentence, and a state is only usable at exactly its position."""
MIN_TOKENS = 32
"""Smallest gain in reusable tokens for which a step is made to end at a prefix."""

Key = tuple[str, int, bytes]
"""Salt, length and digest of a prefix."""


@dataclass(slots=True)
class HeldState:
    """A running sequence's rows in the pool."""

    row: int
    origin: int | None
    """Row from which the state must still be copied; ``None`` once the copy is queued."""
    shared: bool = True
    """True if a prefix cache may need the state again."""
    cuts: tuple[int, ...] = ()
    """Token indices, ascending, where a step must end so that the state there can be cached."""
    kept: dict[int, int] = field(default_factory=dict)
    """Rows to which the state is copied, by token index; registered once the step is committed."""
    reached: int = 0
    """Number of tokens that the row's state includes, with those of steps on the device."""

    def stop(self, start: int, end: int) -> int:
        """Return where a step from ``start`` must end, at most ``end``."""
        index = bisect_right(self.cuts, start)
        return min(end, self.cuts[index]) if index < len(self.cuts) else end


def held_state(sequence: SequenceView) -> HeldState | None:
    """Return the rows of a running sequence; ``None`` if it has none."""
    held: HeldState | None = sequence.extras.get(HeldState)
    return held


class StateRows(StatePhase):
    """The ownership of the rows of a pool of recurrent states.

    Args:
        rows: number of rows of the pool, reserved ones included.
        page_size: prefixes are cached in whole pages of this many tokens.
        grain: see ``GRAIN``.
        min_tokens: see ``MIN_TOKENS``.
    """

    def __init__(self, rows: int, page_size: int, *, grain: int = GRAIN, min_tokens: int = MIN_TOKENS) -> None:
        self.page_size, self.grain, self.min_tokens = page_size, grain, min_tokens
        self._stores = False
        self.capacity = rows - StatePool.RESERVED
        self._free = list(range(rows - 1, StatePool.RESERVED - 1, -1))
        self._known: OrderedDict[Key, int] = OrderedDict()
        self._lengths: dict[int, int] = {}  # number of known prefixes of each length
        self._running = 0
        self.started: list[HeldState] = []
        """The rows of sequences that were given them since the last step."""

    def reusable(self, sequence: SequenceView, length: int) -> int:
        """Return the length of the longest prefix of at most ``length`` tokens whose state is cached."""
        key = self._longest(sequence, length)
        return 0 if key is None else key[1]

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        """Give ``sequence`` a row, to continue from index ``start``; return False if there is none.

        ``start`` is a result of ``reusable``. ``cached``: number of tokens whose keys and values are in the prefix
        cache, though perhaps not the state after them; below 0 if there is no cache.
        """
        key = self._longest(sequence, start) if start else None
        assert start == (0 if key is None else key[1]), "the state of the matched prefix is not there"
        origin: int | None = StatePool.ZEROS if key is None else self._known[key]
        row = self._take(spared=key)
        if row is None and key is not None:  # no other row is left: continue in this one
            row, key, origin = self._forget(key), None, None
        if row is None:
            return False
        self._running += 1
        if key is not None:
            self._known.move_to_end(key)
        cuts = self._cuts(sequence, start, cached)
        held = HeldState(row, origin, cached >= 0, cuts, reached=start)
        sequence.extras[HeldState] = held
        self.started.append(held)
        return True

    def chunk_end(self, sequence: SequenceView, start: int, end: int) -> int:
        """Return where a step from ``start`` must end, at most ``end``."""
        held = held_state(sequence)
        return end if held is None else held.stop(start, end)

    def planned(self, sequence: SequenceView, end: int) -> None:
        """Reserve a row for the state at ``end``, where a planned step ends, if it is one of the cuts."""
        held = held_state(sequence)
        if held is not None and end in held.cuts and end not in held.kept:
            row = self._take()
            if row is not None:
                self._running += 1
                held.kept[end] = row

    def committed(self, sequence: SequenceView) -> None:
        """Register the state that was copied where a step that is done ended."""
        held = held_state(sequence)
        if held is not None and (row := held.kept.pop(sequence.computed, None)) is not None:
            self._running -= 1
            self._remember(sequence, sequence.computed, row)

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        """Take the rows of ``sequence``, which no longer runs; cache its state if ``keep``.

        Returns the number of tokens that the state includes, with those of a step on the device.
        """
        held: HeldState | None = sequence.extras.pop(HeldState, None)
        if held is None:
            return None
        self._running -= 1 + len(held.kept)
        self._free.extend(held.kept.values())
        computed = sequence.computed
        if computed < held.reached <= min(len(sequence.tokens), len(sequence.slots)):
            computed = held.reached
        whole = held.reached == computed and held.reached % self.page_size == 0
        if keep and whole and held.shared and held.origin is None and held.reached:
            self._remember(sequence, held.reached, held.row)
        else:
            self._free.append(held.row)
        held.origin = None
        return computed

    def reset(self) -> None:
        """Drop the states of all cached prefixes."""
        self._free.extend(self._known.values())
        self._known.clear()
        self._lengths.clear()

    def store_at(self, multiple: int) -> None:
        """Cache states at multiples of so many tokens, whole pages: only there, they are stored outside of the pool."""
        self.grain, self._stores = multiple, True

    def saved(self, sequence: SequenceView, length: int) -> int | None:
        """Return the row with the cached state of the first ``length`` tokens; ``None`` if there is none."""
        if length not in self._lengths:
            return None
        return self._known.get((sequence.salt, length, _digest(sequence.keys(0, length))))

    def restore(self, sequence: SequenceView, length: int) -> int | None:
        """Take a row for the state of the first ``length`` tokens, which is not cached yet; the caller must fill it.

        Returns ``None`` if there is no row.
        """
        if (row := self._take()) is not None:
            self._remember(sequence, length, row)
        return row

    def accounts(self) -> dict[str, int]:
        """Return the number of rows by owner."""
        return {
            "free": len(self._free),
            "cached": len(self._known),
            "running": self._running,
            "capacity": self.capacity,
        }

    def check(self) -> None:
        """Raise ``AssertionError`` if a row was lost or is owned twice."""
        accounts = self.accounts()
        total = accounts["free"] + accounts["cached"] + accounts["running"]
        assert total == self.capacity, f"recurrent states do not add up: {accounts}"
        assert len({*self._free, *self._known.values()}) == accounts["free"] + accounts["cached"], "owned twice"

    def _cuts(self, sequence: SequenceView, start: int, cached: int) -> tuple[int, ...]:
        """Return the indices after ``start`` at which the state of ``sequence`` is likely to be needed again."""
        if cached < 0:
            return ()
        length = len(sequence.tokens)
        positions = {(length - 1) // self.grain * self.grain // self.page_size * self.page_size}
        if cached - start >= self.min_tokens:
            positions.add(cached)
            if self._stores:
                positions.add(cached // self.grain * self.grain)
        return tuple(sorted(position for position in positions if start < position < length))

    def _take(self, spared: Key | None = None) -> int | None:
        """Take a free row, or that of the least recently used prefix other than ``spared``; ``None``: there is none."""
        if self._free:
            return self._free.pop()
        for key in self._known:
            if key != spared:
                return self._forget(key)
        return None

    def _remember(self, sequence: SequenceView, length: int, row: int) -> None:
        key = (sequence.salt, length, _digest(sequence.keys(0, length)))
        if key in self._known:
            self._free.append(row)
        else:
            self._known[key] = row
            self._lengths[length] = self._lengths.get(length, 0) + 1
        self._known.move_to_end(key)

    def _forget(self, key: Key) -> int:
        row, length = self._known.pop(key), key[1]
        self._lengths[length] -= 1
        if not self._lengths[length]:
            del self._lengths[length]
        return row

    def _longest(self, sequence: SequenceView, max_length: int) -> Key | None:
        """Return the longest prefix of ``sequence`` with a cached state, of at most ``max_length`` tokens."""
        digest, longest, done = blake2b(digest_size=16), None, 0
        for length in sorted(length_kept for length_kept in self._lengths if length_kept <= max_length):
            digest.update(array("q", sequence.keys(done, length)))
            done = length
            key = (sequence.salt, length, digest.copy().digest())
            longest = key if key in self._known else longest
        return longest


def _digest(tokens: list[int]) -> bytes:
    return blake2b(array("q", tokens), digest_size=16).digest()
