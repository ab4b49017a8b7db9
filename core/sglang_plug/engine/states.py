"""Who owns each row of the pool of recurrent states, and where copies are made for the prefix cache.

A row belongs to the free list, to a running sequence, or to a prefix that is remembered. A prefix found in the cache is
worth what its longest part with a remembered state is, so a sequence is cut where its state will be asked for again:
at the end of its prompt, and where it parts from a prefix that others have computed. Its last state is remembered too,
with the row it is in. What is not running makes room for what is, the longest unused first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from sglang_plug.recurrent import RESERVED, ZEROS

if TYPE_CHECKING:
    from .sequence import Sequence

GRAIN = 64
"""The state at the end of a prompt is remembered at a multiple of this many tokens: prompts are often repeated with
another last sentence, and a state is only of use at the place where it was."""
LEAST = 32
"""A prefix that gives fewer tokens more than another is not worth a step that ends with it."""

Key = tuple[str, int, bytes]
"""Salt, length and digest of a prefix."""


@dataclass(slots=True)
class HeldState:
    """What a running sequence has of the pool."""

    row: int
    origin: int | None
    """Row that its state is still to be copied from; ``None`` once that is queued."""
    shared: bool = True
    """Whether a prefix cache may ask for it again."""
    cuts: tuple[int, ...] = ()
    """Places, ascending, where a step ends so that the state there can be remembered."""
    kept: dict[int, int] = field(default_factory=dict)
    """By place, rows that the state there is copied to; registered once the step is committed."""
    reached: int = 0
    """Tokens that the row's state includes, steps on the device counted."""

    def stop(self, start: int, end: int) -> int:
        """Where a step from place ``start`` ends that could go on to ``end``."""
        index = bisect_right(self.cuts, start)
        return min(end, self.cuts[index]) if index < len(self.cuts) else end


class StateRows:
    """The accounts of a pool of recurrent states.

    Args:
        rows: of the pool, those that no sequence owns included.
        page_size: prefixes are remembered in whole pages of this many tokens.
        grain: see ``GRAIN``.
        least: see ``LEAST``.
    """

    def __init__(self, rows: int, page_size: int, *, grain: int = GRAIN, least: int = LEAST) -> None:
        self.page_size, self.grain, self.least = page_size, grain, least
        self.capacity = rows - RESERVED
        self._free = list(range(rows - 1, RESERVED - 1, -1))
        self._known: OrderedDict[Key, int] = OrderedDict()
        self._lengths: dict[int, int] = {}  # of known prefixes, how many have each
        self._running = 0

    def reusable(self, sequence: Sequence, most: int) -> int:
        """Length of the longest prefix of at most ``most`` tokens whose state is remembered."""
        key = self._longest(sequence, most)
        return 0 if key is None else key[1]

    def begin(self, sequence: Sequence, start: int, cached: int) -> bool:
        """Give ``sequence`` a row, to go on from place ``start``; False if there is none.

        ``start`` is what ``reusable`` gave. ``cached``: tokens whose keys and values are in the prefix cache, though
        perhaps not the state behind them; below 0 if there is no cache.
        """
        key = self._longest(sequence, start) if start else None
        assert start == (0 if key is None else key[1]), "the state of the matched prefix is not there"
        origin: int | None = ZEROS if key is None else self._known[key]
        row = self._take(spared=key)
        if row is None and key is not None:  # there is none but that one: go on where it is
            row, key, origin = self._forget(key), None, None
        if row is None:
            return False
        self._running += 1
        if key is not None:
            self._known.move_to_end(key)
        sequence.held = HeldState(row, origin, cached >= 0, self._cuts(sequence, start, cached), reached=start)
        return True

    def keep_at(self, sequence: Sequence, place: int) -> None:
        """A step that ends at ``place`` is planned: reserve a row for the state there, if it is one of the cuts."""
        held = sequence.held
        if held is not None and place in held.cuts and place not in held.kept:
            row = self._take()
            if row is not None:
                self._running += 1
                held.kept[place] = row

    def committed(self, sequence: Sequence, place: int) -> None:
        """A step that ended at ``place`` is done: what was copied there is known from now on."""
        held = sequence.held
        if held is not None and (row := held.kept.pop(place, None)) is not None:
            self._running -= 1
            self._remember(sequence, place, row)

    def end(self, sequence: Sequence, remember: bool) -> None:
        """Take the rows of ``sequence``, which runs no longer; its state is remembered if ``remember``."""
        held, sequence.held = sequence.held, None
        if held is None:
            return
        self._running -= 1 + len(held.kept)
        self._free.extend(held.kept.values())
        whole = held.reached == sequence.computed and held.reached % self.page_size == 0
        if remember and whole and held.shared and held.origin is None and held.reached:
            self._remember(sequence, held.reached, held.row)
        else:
            self._free.append(held.row)

    def reset(self) -> None:
        """Forget all prefixes."""
        self._free.extend(self._known.values())
        self._known.clear()
        self._lengths.clear()

    def accounts(self) -> dict[str, int]:
        """Rows by owner."""
        return {
            "free": len(self._free),
            "remembered": len(self._known),
            "running": self._running,
            "capacity": self.capacity,
        }

    def check(self) -> None:
        """Raise ``AssertionError`` if a row was lost or is owned twice."""
        accounts = self.accounts()
        total = accounts["free"] + accounts["remembered"] + accounts["running"]
        assert total == self.capacity, f"recurrent states do not add up: {accounts}"
        assert len({*self._free, *self._known.values()}) == accounts["free"] + accounts["remembered"], "owned twice"

    def _cuts(self, sequence: Sequence, start: int, cached: int) -> tuple[int, ...]:
        """Where the state of ``sequence`` will be asked for again, behind ``start``."""
        if cached < 0:
            return ()
        length = len(sequence.tokens)
        places = {(length - 1) // self.grain * self.grain // self.page_size * self.page_size}
        if cached - start >= self.least:
            places.add(cached)
        return tuple(sorted(place for place in places if start < place < length))

    def _take(self, spared: Key | None = None) -> int | None:
        """A free row, or that of the prefix that was used longest ago, but not of ``spared``."""
        if self._free:
            return self._free.pop()
        for key in self._known:
            if key != spared:
                return self._forget(key)
        return None

    def _remember(self, sequence: Sequence, length: int, row: int) -> None:
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

    def _longest(self, sequence: Sequence, most: int) -> Key | None:
        """Of the remembered prefixes of ``sequence`` the longest of at most ``most`` tokens."""
        digest, found, done = blake2b(digest_size=16), None, 0
        for length in sorted(one for one in self._lengths if one <= most):
            digest.update(array("q", sequence.keys(done, length)))
            done = length
            key = (sequence.salt, length, digest.copy().digest())
            found = key if key in self._known else found
        return found


def _digest(tokens: list[int]) -> bytes:
    return blake2b(array("q", tokens), digest_size=16).digest()
