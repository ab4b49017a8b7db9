"""What sequences hold of KV pool, prefix cache and recurrent states: given and taken in one place."""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug.cache import Match, PrefixCache

from .sequence import Sequence
from .slots import SlotPool
from .states import StateRows

EVICT_AT_ONCE = 64
"""Eviction frees at least this fraction of the pool, so that not every step has to look for leaves."""


class Holdings:
    """Who has which slots, and which states. Ownership of KV slots: see ``sglang_plug.cache``.

    Args:
        pool: the free list.
        cache: the prefix cache.
        states: who has the recurrent states, if the model has any.
    """

    def __init__(self, pool: SlotPool, cache: PrefixCache, states: StateRows | None = None) -> None:
        self.pool, self.cache, self.states = pool, cache, states

    def match(self, waiting: object) -> Match:
        """The longest cached prefix that a waiting sequence can go on from."""
        assert isinstance(waiting, Sequence)
        length = waiting.reusable
        while True:
            match = self.cache.match(waiting.keys(0, length), waiting.salt, waiting.priority)
            found = len(match.slots)
            length = found if waiting.view is None else waiting.view.reusable(found)
            if self.states is not None:
                length = self.states.reusable(waiting, length)
            if length == found:
                return match

    def begin(self, sequence: Sequence, match: Match, reserve: int) -> bool:
        """Give a waiting sequence, of which ``match`` is cached, a slot for each of its tokens, and a state.

        False if there are not so many, or then fewer than ``reserve`` left.
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
        """Evict until ``needed`` slots are free; False if the cache has not that many to give."""
        short = needed - self.pool.free
        if short > 0:
            if self.cache.evictable < short:
                return False
            self.pool.give_back(self.cache.evict(max(short, self.pool.capacity // EVICT_AT_ONCE)))
        return self.pool.free >= needed

    def planned(self, sequence: Sequence, end: int) -> None:
        """A step of ``sequence`` that ends at place ``end`` is planned."""
        if self.states is not None:
            self.states.keep_at(sequence, end)

    def committed(self, sequence: Sequence, *, prefilling: bool) -> None:
        """``sequence.computed`` has grown by what a step computed."""
        if self.states is not None:
            self.states.committed(sequence, sequence.computed)
        if prefilling:
            self._remember(sequence)

    def release(self, sequence: Sequence, remember: bool = True) -> None:
        """The one place where a sequence's slots go back: finish, abort, error and retraction all end here."""
        if self.states is not None:
            self._release_state(self.states, sequence, remember)
        if remember:
            self._remember(sequence)
        self.pool.give_back(sequence.slots[sequence.shared :])
        if sequence.match is not None:
            self.cache.unlock(sequence.match)
        sequence.match = None
        sequence.computed = 0
        sequence.placement += 1
        del sequence.slots[:]

    def flush(self) -> None:
        """Forget all prefixes; nothing may be running."""
        self.pool.give_back(self.cache.reset())
        if self.states is not None:
            self.states.reset()

    def accounts(self, running: Iterable[Sequence]) -> dict[str, int]:
        """Slots by owner: ``free``, ``cached``, ``running`` and the ``capacity`` they add up to."""
        return {
            "free": self.pool.free,
            "cached": self.cache.size,
            "running": sum(self.pool.missing(one.shared, len(one.slots)) for one in running),
            "capacity": self.pool.capacity,
        }

    def check(self, running: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` if a slot or a state was lost or is owned twice."""
        accounts = self.accounts(running)
        total = accounts["free"] + accounts["cached"] + accounts["running"]
        assert total == accounts["capacity"], f"KV slots do not add up: {accounts}"
        if self.states is not None:
            self.states.check()

    def _begin_state(self, sequence: Sequence, match: Match) -> bool:
        """Let ``sequence`` have a recurrent state, if the model has any; False if there is none left."""
        if self.states is None:
            return True
        cached = -1
        if match.node is not None:
            cached = len(self.cache.match(sequence.keys(0, sequence.reusable), sequence.salt, sequence.priority).slots)
        return self.states.begin(sequence, len(match.slots), cached)

    @staticmethod
    def _release_state(states: StateRows, sequence: Sequence, remember: bool) -> None:
        """Take the recurrent state of ``sequence``, which belongs to the tokens that were computed, those of a step on
        the device included: whoever is given it, and these keys and values, is computed by a step queued later."""
        held = sequence.held
        if held is not None and sequence.computed < held.reached <= min(len(sequence.tokens), len(sequence.slots)):
            sequence.computed = held.reached
        states.end(sequence, remember)

    def _remember(self, sequence: Sequence) -> None:
        """Hand the computed whole pages to the prefix cache and hold on to them there.

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
                sequence.placement += 1
                self.pool.give_back(own[start : start + self.pool.page_size])
        sequence.slots[: len(kept)] = type(own)("q", kept)
