"""Allocation of KV slots, cached prefixes and recurrent states to sequences, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sglang_plug.contracts.serving.cache import Match, PrefixCache
from sglang_plug.engine.recurrent_state.state_rows import StateRows
from sglang_plug.engine.scheduling.sequence import Sequence

from .kv_slots import SlotPool

EVICT_AT_ONCE = 64
"""Eviction frees at least this fraction of the pool, so that not every step has to look for leaves."""


class KVAllocator:
    """Gives slots and states to sequences and takes them back.

    Ownership of KV slots: see ``sglang_plug.contracts.serving.cache``.

    Args:
        pool: the free list.
        cache: the prefix cache.
        states: owners of the recurrent states, if the model has any.
        owners: the prefix cache and its eviction policy, as error messages name them.
    """

    def __init__(
        self,
        pool: SlotPool,
        cache: PrefixCache,
        states: StateRows | None = None,
        owners: str = "the prefix cache",
    ) -> None:
        self.pool, self.cache, self.states, self.owners = pool, cache, states, owners

    def match(self, waiting: Sequence) -> Match:
        """Find the longest cached prefix from which a waiting sequence can continue."""
        length = waiting.reusable
        while True:
            match = self.cache.match(waiting.keys(0, length), waiting.salt, waiting.priority)
            matched = len(match.slots)
            length = matched if waiting.view is None else waiting.view.reusable(matched)
            if self.states is not None:
                length = self.states.reusable(waiting, length)
            if length == matched:
                return match

    def begin(self, sequence: Sequence, match: Match, reserve: int) -> bool:
        """Give a waiting sequence with the cached prefix ``match`` a slot for each of its tokens, and a state.

        Returns False if there are not enough slots, or if fewer than ``reserve`` would be left.
        """
        self.cache.lock(match)
        needed = self.pool.missing(len(match.slots), len(sequence.tokens))
        fits = self.pool.free + self.cache.evictable >= needed + reserve and self.free_up(needed)
        if not fits or not self._begin_state(sequence, match):
            self.cache.unlock(match)
            return False
        sequence.match = match
        sequence.computed = len(match.slots)
        del sequence.slots[:]
        sequence.slots.extend(match.slots)
        self.pool.extend(sequence.slots, len(sequence.tokens))
        return True

    def free_up(self, needed: int) -> bool:
        """Evict until ``needed`` slots are free; return False if the cache cannot give up enough."""
        short = needed - self.pool.free
        if short > 0:
            if self.cache.evictable < short:
                return False
            self._take_back(lambda: self.cache.evict(max(short, self.pool.capacity // EVICT_AT_ONCE)), "evict")
        return self.pool.free >= needed

    def evict(self, wanted: int) -> int:
        """Evict unused prefixes until ``wanted`` slots are freed or none is left; return the number of freed slots."""
        return self._take_back(lambda: self.cache.evict(min(wanted, self.cache.evictable)), "evict")

    def planned(self, sequence: Sequence, end: int) -> None:
        """Record that a step of ``sequence`` that ends before index ``end`` is planned."""
        if self.states is not None:
            self.states.keep_at(sequence, end)

    def committed(self, sequence: Sequence, *, prefilling: bool) -> None:
        """Record that a step has advanced ``sequence.computed``; after prefill, put the prefix into the cache."""
        if self.states is not None:
            self.states.committed(sequence, sequence.computed)
        if prefilling:
            self._remember(sequence)

    def release(self, sequence: Sequence, remember: bool = True) -> None:
        """Free the slots and the state of a sequence; finish, abort, error and retraction all end here."""
        if self.states is not None:
            self._release_state(self.states, sequence, remember)
        if remember:
            self._remember(sequence)
        self.pool.give_back(sequence.slots[sequence.shared :])
        if sequence.match is not None:
            self.cache.unlock(sequence.match)
        sequence.match = None
        sequence.computed = 0
        sequence.slot_version += 1
        del sequence.slots[:]

    def flush(self) -> None:
        """Empty the prefix cache; nothing may be running."""
        self._take_back(self.cache.reset, "reset")
        if self.states is not None:
            self.states.reset()

    def accounts(self, running: Iterable[Sequence]) -> dict[str, int]:
        """Return the slots by owner: ``free``, ``cached``, ``running`` and the ``capacity`` they add up to."""
        return {
            "free": self.pool.free,
            "cached": self.cache.size,
            "running": sum(self.pool.missing(sequence.shared, len(sequence.slots)) for sequence in running),
            "capacity": self.pool.capacity,
        }

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` if a slot or a state was lost or is owned twice."""
        accounts = self.accounts(running)
        total = accounts["free"] + accounts["cached"] + accounts["running"]
        assert total == accounts["capacity"], (
            f"KV slots do not add up: {accounts}; besides the engine's own free list and running sequences, "
            f"{self.owners} owns slots: its size must count each slot that insert() took and evict() has not given back"
        )
        if self.states is not None:
            self.states.check()

    def _take_back(self, give: Callable[[], list[int]], method: str) -> int:
        """Free the slots that the prefix cache gives back; return their number.

        Raises ``RuntimeError`` if the cache's size does not shrink by that number.
        """
        before = self.cache.size
        slots = give()
        gone = before - self.cache.size
        if len(slots) != gone:
            raise RuntimeError(f"{self.owners}: {method}() returned {len(slots)} slots, and its size shrank by {gone}")
        self.pool.give_back(slots)
        return len(slots)

    def _begin_state(self, sequence: Sequence, match: Match) -> bool:
        """Give ``sequence`` a recurrent state, if the model has any; return False if none is left."""
        if self.states is None:
            return True
        cached = -1
        if match.node is not None:
            cached = len(self.cache.match(sequence.keys(0, sequence.reusable), sequence.salt, sequence.priority).slots)
        return self.states.begin(sequence, len(match.slots), cached)

    @staticmethod
    def _release_state(states: StateRows, sequence: Sequence, remember: bool) -> None:
        """Take the recurrent state of ``sequence``; it includes the tokens of a step that is still on the device.

        That is safe: a sequence that gets the state, and these keys and values, is computed by a step queued later.
        """
        held = sequence.held
        if held is not None and sequence.computed < held.reached <= min(len(sequence.tokens), len(sequence.slots)):
            sequence.computed = held.reached
        states.end(sequence, remember)

    def _remember(self, sequence: Sequence) -> None:
        """Hand the computed whole pages to the prefix cache and lock them there.

        ::

            0 ........ shared ........ whole ...... len(slots)
            | cache's  | ours, becomes | stays ours |
            |          | the cache's   |            |

        Where the cache had a page already, ours is a duplicate: it is freed and the cache's is used instead.
        """
        whole = sequence.computed // self.pool.page_size * self.pool.page_size
        shared = sequence.shared
        if whole <= shared:
            return
        old = sequence.match
        own = sequence.slots[:whole]
        match = self.cache.insert(sequence.keys(0, whole), own, sequence.salt, sequence.priority)
        self.cache.lock(match)
        if old is not None:
            self.cache.unlock(old)
        sequence.match = match
        kept = match.slots
        for start in range(shared, len(kept), self.pool.page_size):
            if kept[start] != own[start]:
                sequence.slot_version += 1
                self.pool.give_back(own[start : start + self.pool.page_size])
        sequence.slots[: len(kept)] = type(own)("q", kept)
