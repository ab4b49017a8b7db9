"""Evicts cached prefixes, and returns the pool's pages, when the system or the container runs out of memory.

The KV pool of a CPU takes memory as its slots are first written to, and cached prefixes keep it. Without relief, the
kernel would kill the engine when other processes, or the engine itself, need the memory that the cache holds.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.system.freed_memory import return_freed_memory

from .budget import gigabytes
from .host_memory import HostMemory
from .kv_allocator import KVAllocator
from .pool_pages import Run, return_pages

logger = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two checks of the memory."""
CRITICAL_SHARE, MOST_CRITICAL = 0.05, 1 << 30
"""Memory is critical when less than this fraction of it, capped at this number of bytes, is available."""
COMFORTABLE = 2
"""Multiple of the critical amount that must be available before an episode is over."""
STALLED = 10.0
"""Percent of the last ten seconds in which all processes waited for memory; critical too, if little is left."""
LITTLE = 4
"""Multiple of the critical amount below which memory counts as little while processes are stalled."""
LEAST_SHARE = 64
"""An eviction frees at least this fraction of the pool."""


@dataclass(slots=True)
class Relief:
    """Counters of the actions taken for lack of memory since the start."""

    episodes: int = 0
    evicted_tokens: int = 0


class MemoryRelief:
    """Checks the host's memory every few seconds, between steps.

    Args:
        allocator: the owner of the cached prefixes to evict.
        kv: the pool, in the host's memory.
        read: reads the state of the memory.
        give_back: tells other ranks which runs of slots of their pools are unused.
        clock: the time in seconds.
    """

    def __init__(
        self,
        allocator: KVAllocator,
        kv: KVPool,
        read: Callable[[], HostMemory],
        give_back: Callable[[Iterable[Run]], None] = lambda runs: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allocator, self._kv, self._read, self._give_back, self._clock = allocator, kv, read, give_back, clock
        self._next = 0.0
        self._critical = False
        self.done = Relief()
        parts = kv.k if kv.values_in_keys else [*kv.k, *kv.v]
        self._slot_bytes = max(1, sum(part[0].numel() * part.element_size() for part in parts))

    @property
    def patience(self) -> float | None:
        """Seconds that an idle engine may wait for messages; ``None``: forever, because the pool uses no memory yet."""
        return PERIOD if self._allocator.pool.used else None

    def look(self) -> int:
        """Check the memory if it is time to; evict prefixes if it is critical. Returns the number of evicted tokens."""
        now = self._clock()
        if now < self._next or not self._allocator.pool.used:
            return 0
        self._next = now + PERIOD
        memory = self._read()
        critical = min(memory.total * CRITICAL_SHARE, MOST_CRITICAL)
        enough = COMFORTABLE * critical
        stalled = memory.stalled >= STALLED and memory.available < LITTLE * critical
        if memory.available >= critical and not stalled:
            self._critical = self._critical and memory.available < enough
            return 0
        begins, self._critical = not self._critical, True
        if begins:
            self.done.episodes += 1
            self._return()
            memory = self._read()
        evicted = self._evict(max(LITTLE * critical if stalled else 0.0, enough) - memory.available)
        self.done.evicted_tokens += evicted
        if evicted:
            self._return()
        if begins:
            logger.warning(
                "Memory is running out: %s of %s are available. %d cached tokens are forgotten, and more while it "
                "stays so; lower --max-total-tokens if it happens again",
                gigabytes(memory.available),
                gigabytes(memory.total),
                evicted,
            )
        return evicted

    def _evict(self, short: float) -> int:
        """Evict prefixes that hold ``short`` bytes, or all if they hold less."""
        if short <= 0:
            return 0
        return self._allocator.evict(
            max(math.ceil(short / self._slot_bytes), self._allocator.pool.capacity // LEAST_SHARE)
        )

    def _return(self) -> None:
        """Return the memory of all free slots, and of the process's allocator, to the system."""
        runs = self._allocator.pool.unused_runs()
        return_pages(self._kv, runs)
        self._give_back(runs)
        return_freed_memory()
