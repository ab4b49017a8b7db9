"""KV slots: the free list, and their allocation to sequences, with cached prefixes and states of step extensions.

Slots are allocated in pages; page 0 is the spare page that padding uses.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from contextlib import ExitStack

from sglang_plug.contracts.extension.memory_phases import StatePhase
from sglang_plug.contracts.extension.views import SequenceView, WriteSlots
from sglang_plug.contracts.serving.cache import Match, PrefixCache
from sglang_plug.engine.extensions.server_points import CachePoints
from sglang_plug.engine.sequences.sequence import Sequence

EVICT_AT_ONCE = 64
"""Eviction frees at least this fraction of the pool, so that not every step has to look for leaves."""


class SlotPool:
    """The free list of the KV pool.

    Every slot of ``capacity`` is owned by the free list, the prefix cache or one sequence; the scheduler checks
    ``free + cached + running == capacity``.
    """

    def __init__(self, capacity: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = capacity // page_size
        self._free = list(range(self.num_pages, 0, -1))  # page numbers, the next one last
        self._highest = 0  # highest page that was ever freed: no free page above it has memory yet

    @property
    def capacity(self) -> int:
        """Number of slots that can be owned; a whole number of pages."""
        return self.num_pages * self.page_size

    @property
    def rows(self) -> int:
        """Number of rows that the KV pool needs, the spare page included."""
        return (self.num_pages + 1) * self.page_size

    @property
    def free(self) -> int:
        """Number of slots on the free list."""
        return len(self._free) * self.page_size

    def missing(self, held: int, length: int) -> int:
        """Return the number of slots to take from the free list so that ``held`` tokens can grow to ``length``."""
        pages = -(-length // self.page_size) - -(-held // self.page_size)
        return max(0, pages) * self.page_size

    def extend(self, slots: array[int], length: int) -> None:
        """Grow ``slots`` to ``length`` entries; the caller must have made sure that enough are free."""
        size = self.page_size
        while len(slots) < length:
            offset = len(slots) % size
            if offset:
                start, room = slots[-1] + 1, size - offset
            else:
                start, room = self._free.pop() * size, size
            slots.extend(range(start, start + min(room, length - len(slots))))

    def shrink(self, slots: array[int], length: int) -> bool:
        """Free the pages of ``slots`` that its first ``length`` entries do not need; return True if there were any."""
        size = self.page_size
        kept = -(-length // size) * size
        spare = slots[kept:]
        del slots[length:]
        self.release(spare)
        return bool(spare)

    def release(self, slots: Ordered[int]) -> None:
        """Free whole pages: ``slots`` begins at a page's first slot, its last page may be partly used."""
        pages = [slot // self.page_size for slot in slots[:: self.page_size]]
        self._free.extend(pages)
        self._highest = max(self._highest, *pages, 0)

    @property
    def used(self) -> bool:
        """True once a slot was taken."""
        return self._highest > 0 or len(self._free) < self.num_pages

    def unused_runs(self) -> list[tuple[int, int]]:
        """Return the runs of free slots that have been used before, each as start and exclusive end.

        From now on the lowest free slots are taken first, so that those at the end stay unused.
        """
        self._free.sort(reverse=True)
        runs, size, page = list[tuple[int, int]](), self.page_size, 0
        for page in reversed(self._free):
            if page > self._highest:
                break
            if runs and runs[-1][1] == page * size:
                runs[-1] = runs[-1][0], (page + 1) * size
            else:
                runs.append((page * size, (page + 1) * size))
        return runs

    def free_slots(self) -> Iterable[int]:
        """Yield every free slot, for checks."""
        for page in self._free:
            yield from range(page * self.page_size, (page + 1) * self.page_size)


class KVAllocator:
    """Gives slots and states to sequences and takes them back.

    Ownership of KV slots: see ``sglang_plug.contracts.serving.cache``.

    Args:
        pool: the free list.
        cache: the prefix cache.
        extensions: the extension points of the prefix cache and of states.
        cache_description: the prefix cache and its eviction policy, as errors name them.
    """

    def __init__(
        self,
        pool: SlotPool,
        cache: PrefixCache,
        extensions: CachePoints,
        cache_description: str,
    ) -> None:
        self.pool = pool
        self.cache = cache
        self.cache_description = cache_description
        self._extensions = extensions
        self.states = self._extensions.states

    def match(self, waiting: SequenceView) -> Match:
        """Find the longest cached prefix from which a waiting sequence can continue."""
        length = waiting.reusable
        while True:
            match = self.cache.find(waiting.keys(0, length), waiting.salt, waiting.request.priority)
            matched = len(match.slots)
            length = matched if waiting.layout is None else waiting.layout.reusable(matched)
            for state in self.states:
                length = state.reusable(waiting, length)
            if length == matched:
                return match

    def match_kv(self, waiting: SequenceView) -> Match:
        """Find the longest prefix whose keys and values are cached, even if the state to continue from is missing."""
        return self.cache.find(waiting.keys(0, waiting.reusable), waiting.salt, waiting.request.priority)

    def restore(self, waiting: Sequence, busy: bool) -> bool:
        """Let step extensions insert what they know of a waiting sequence's prefix; False: they need another step."""
        return all([restore(waiting, busy) for restore in self._extensions.restore_prefix])

    def insert(self, waiting: SequenceView, length: int, write: WriteSlots) -> int:
        """Put the first ``length`` tokens of a waiting sequence into the prefix cache; see ``PrefixPool.insert``."""
        size = self.pool.page_size
        match = self.match_kv(waiting)
        start, length = len(match.slots), min(length, waiting.reusable) // size * size
        if length <= start:
            return start
        self.cache.lock(match)  # making room must not evict it
        try:
            room = self.pool.free + self.cache.evictable >= self.pool.missing(start, len(waiting.tokens))
            if not room or not self.free_up(self.pool.missing(start, length)):
                return start
            slots = array("q", match.slots)
            self.pool.extend(slots, length)
            kept = match
            try:
                write(start, slots[start:])
                kept = self.cache.insert(waiting.keys(0, length), slots, waiting.salt, waiting.request.priority)
            finally:
                self._free_duplicates(slots, kept, start)
            for restored in self._extensions.prefix_restored:
                restored(waiting, kept.slots)
        finally:
            self.cache.unlock(match)
        return len(kept.slots)

    def allocate(self, sequence: Sequence, match: Match, reserve: int) -> bool:
        """Give a waiting sequence with the cached prefix ``match`` a slot for each of its tokens, and a state.

        Returns False if there are not enough slots, or if fewer than ``reserve`` would be left.
        """
        self.cache.lock(match)
        is_allocated = False
        try:
            needed = self.pool.missing(len(match.slots), len(sequence.tokens))
            fits = self.pool.free + self.cache.evictable >= needed + reserve and self.free_up(needed)
            is_allocated = fits and self._acquire_states(sequence, match)
        finally:
            if not is_allocated:
                self.cache.unlock(match)
        if not is_allocated:
            return False
        if match.slots:  # a hit, now that the prefix is used
            self.cache.match(sequence.keys(0, len(match.slots)), sequence.salt, sequence.request.priority)
        sequence.match = match
        sequence.computed = len(match.slots)
        del sequence.slots[:]
        sequence.slots.extend(match.slots)
        self.pool.extend(sequence.slots, len(sequence.tokens))
        return True

    def free_up(self, needed: int) -> bool:
        """Evict until ``needed`` slots are free; return False if the cache has too few that are unused."""
        short = needed - self.pool.free
        if short <= 0:
            return True
        if self.cache.evictable < short:
            return False
        self._evict(max(short, self.pool.capacity // EVICT_AT_ONCE))
        return self.pool.free >= needed

    def evict(self, count: int) -> int:
        """Evict unused prefixes until ``count`` slots are freed or none is left; return the number of freed slots."""
        return self._evict(min(count, self.cache.evictable))

    def planned(self, sequence: Sequence, end: int) -> None:
        """Record that a step of ``sequence`` that ends before index ``end`` is planned."""
        for state in self.states:
            state.planned(sequence, end)

    def committed(self, sequence: Sequence, *, prefilling: bool) -> None:
        """Record that a step has advanced ``sequence.computed``; after prefill, put the prefix into the cache."""
        for state in self.states:
            state.committed(sequence)
        if prefilling:
            self._cache_prefix(sequence)

    def release(self, sequence: Sequence, cache_prefix: bool = True) -> None:
        """Free the slots and the state of a sequence; finish, abort, error and retraction all end here."""
        if self.states:
            self._release_states(sequence, cache_prefix)
        if cache_prefix:
            self._cache_prefix(sequence)
        self.pool.release(sequence.slots[sequence.shared :])
        if sequence.match is not None:
            self.cache.unlock(sequence.match)
        sequence.match = None
        sequence.computed = 0
        sequence.slot_version += 1
        del sequence.slots[:]

    def flush(self, *, stored: bool = True) -> None:
        """Empty the prefix cache; ``stored``: also what extensions have stored of it. Nothing may be running.

        All extensions are told, even if one of them fails: what they keep may belong to other weights by now.
        """
        self._reclaim_slots(self.cache.reset, "reset")
        told = [*self._extensions.reset, *(self._extensions.forget_stored if stored else ())]
        with ExitStack() as stack:
            for forget in reversed(told):  # the last one is called first
                stack.callback(forget)

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
            f"{self.cache_description} owns slots: its size must count each slot that insert() took and evict() has "
            "not given back"
        )
        for check in self._extensions.check:
            check()

    def _evict(self, count: int) -> int:
        """Let the prefix cache evict at least ``count`` slots, if it can, and tell extensions; return their number."""
        slots = self._reclaim_slots(lambda: self.cache.evict(count), "evict")
        for evicted in self._extensions.evicted:
            evicted(slots)
        return len(slots)

    def _reclaim_slots(self, take_back: Callable[[], list[int]], method: str) -> list[int]:
        """Take slots back from the prefix cache, free them, and return them.

        Raises ``RuntimeError`` if the cache's size does not shrink by that number.
        """
        before = self.cache.size
        slots = take_back()
        evicted = before - self.cache.size
        if len(slots) != evicted:
            raise RuntimeError(
                f"{self.cache_description}: {method}() returned {len(slots)} slots, and its size shrank by {evicted}"
            )
        self.pool.release(slots)
        return slots

    def _acquire_states(self, sequence: Sequence, match: Match) -> bool:
        """Give ``sequence`` its states, or none of them; return False if there is no room for one."""
        if not self.states:
            return True
        cached = -1
        if match.node is not None:
            cached = len(self.match_kv(sequence).slots)
        acquired: list[StatePhase] = []
        try:
            for state in self.states:
                if not state.acquire(sequence, len(match.slots), cached):
                    break
                acquired.append(state)
        finally:
            if len(acquired) < len(self.states):
                for state in acquired:
                    state.release(sequence, False)
        return len(acquired) == len(self.states)

    def _release_states(self, sequence: Sequence, cache_prefix: bool) -> None:
        """Take the states of ``sequence``; they may include the tokens of a step that is still on the device.

        That is safe: a sequence that gets the state, and these keys and values, is computed by a step queued later.
        """
        lengths = [state.release(sequence, cache_prefix) for state in self.states]
        known = [sequence.computed if length is None else length for length in lengths]
        sequence.computed = min(known)

    def _cache_prefix(self, sequence: Sequence) -> None:
        """Hand the computed whole pages to the prefix cache and lock them there.

        ::

            0 ........ shared ...... cacheable .... len(slots)
            | cache's  | ours, becomes | stays ours |
            |          | the cache's   |            |

        Where the cache had a page already, ours is a duplicate: it is freed and the cache's is used instead.
        """
        cacheable = sequence.computed // self.pool.page_size * self.pool.page_size
        shared = sequence.shared
        if cacheable <= shared:
            return
        old = sequence.match
        own = sequence.slots[:cacheable]
        match = self.cache.insert(sequence.keys(0, cacheable), own, sequence.salt, sequence.priority)
        self.cache.lock(match)
        if old is not None:
            self.cache.unlock(old)
        sequence.match = match
        if self._free_duplicates(own[: len(match.slots)], match, shared):
            sequence.slot_version += 1
        sequence.slots[: len(match.slots)] = array("q", match.slots)
        for cached in self._extensions.prefix_cached:
            cached(sequence, len(match.slots))

    def _free_duplicates(self, own: array[int], kept: Match, start: int) -> bool:
        """Free the pages of ``own`` from index ``start`` on that the prefix cache did not take; True if it did not."""
        freed, size = False, self.pool.page_size
        for index in range(start, len(own), size):
            if index >= len(kept.slots) or kept.slots[index] != own[index]:
                self.pool.release(own[index : index + size])
                freed = True
        return freed
