"""Evicts cached prefixes, and returns the pool's pages, when the system or the container runs out of memory.

The KV pool of a CPU takes memory as its slots are first written to, and cached prefixes keep it. Without relief, the
kernel would kill the engine when other processes, or the engine itself, need the memory that the cache holds.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sglang_plug import (
    CachePhase,
    ExtensionContext,
    HostMemory,
    MetricCounter,
    MetricsPhase,
    PrefixPool,
    ServicePhase,
    StepExtension,
    host_memory,
)
from sglang_plug_backends.byte_sizes import gigabytes

logger = logging.getLogger(__name__)

PERIOD = 2.0
"""Seconds between two checks of the memory."""
CRITICAL_SHARE, MAX_CRITICAL = 0.05, 1 << 30
"""Memory is critical when less than this fraction of it, capped at this number of bytes, is available."""
COMFORTABLE = 2
"""Multiple of the critical amount that must be available before an episode is over."""
STALLED = 10.0
"""Percent of the last ten seconds in which all processes waited for memory; critical too, if little is left."""
LITTLE = 4
"""Multiple of the critical amount below which memory counts as little while processes are stalled."""
MIN_SHARE = 64
"""An eviction frees at least this fraction of the pool."""
EVICTED = "memory_relieved_tokens_total"
EVICTED_TEXT = "Cached tokens evicted because the host's memory ran low"


@dataclass(slots=True)
class ReliefCounts:
    """Counters of the actions taken for lack of memory since the start."""

    episodes: int = 0
    evicted_tokens: int = 0


class Relief:
    """Checks the host's memory every few seconds, between steps.

    Args:
        prefixes: the cached prefixes to evict, and their pool, in the host's memory.
        read: reads the state of the memory.
        clock: the time in seconds.
    """

    def __init__(
        self,
        prefixes: PrefixPool,
        read: Callable[[], HostMemory] = host_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prefixes, self._read, self._clock = prefixes, read, clock
        self._next = 0.0
        self._critical = self._is_used = False
        self.done = ReliefCounts()
        self._slot_bytes = max(1, sum(part[0].numel() * part.element_size() for part in prefixes.kv.parts))

    @property
    def is_needed(self) -> bool:
        """True once the pool uses memory."""
        self._is_used = self._is_used or self._prefixes.used
        return self._is_used

    def check_memory(self) -> int:
        """Check the memory if it is time to; evict prefixes if it is critical. Returns the number of evicted tokens."""
        now = self._clock()
        if now < self._next or not self.is_needed:
            return 0
        self._next = now + PERIOD
        memory = self._read()
        critical = min(memory.total * CRITICAL_SHARE, MAX_CRITICAL)
        enough = COMFORTABLE * critical
        stalled = memory.stalled >= STALLED and memory.available < LITTLE * critical
        if memory.available >= critical and not stalled:
            self._critical = self._critical and memory.available < enough
            return 0
        begins, self._critical = not self._critical, True
        if begins:
            self.done.episodes += 1
            self._prefixes.return_memory()
            memory = self._read()
        evicted = self._evict(max(LITTLE * critical if stalled else 0.0, enough) - memory.available)
        self.done.evicted_tokens += evicted
        if evicted:
            self._prefixes.return_memory()
        if begins:
            logger.warning(
                "Host memory is low: %s of %s are available. Evicted %d cached tokens; lower --max-total-tokens if "
                "this repeats",
                gigabytes(memory.available),
                gigabytes(memory.total),
                evicted,
            )
        return evicted

    def _evict(self, short: float) -> int:
        """Evict prefixes that hold ``short`` bytes, or all if they hold less."""
        if short <= 0:
            return 0
        return self._prefixes.evict(max(math.ceil(short / self._slot_bytes), self._prefixes.capacity // MIN_SHARE))


class MemoryRelief(StepExtension, CachePhase, ServicePhase, MetricsPhase):
    """Relieves the memory of the host, if the KV pool is there."""

    def __init__(self) -> None:
        self.relief: Relief | None = None
        """``None``: there is no pool in the host's memory."""

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Watch the memory of a pool on the host."""
        if prefixes.kv.k and prefixes.kv.k[0].device.type == "cpu":
            self.relief = Relief(prefixes)

    def idle_timeout(self) -> float | None:
        """Return the seconds between two checks of the memory; ``None`` while the pool uses none."""
        return PERIOD if self.relief is not None and self.relief.is_needed else None

    def between_steps(self) -> None:
        """Check the memory if it is time to."""
        if self.relief is not None:
            self.relief.check_memory()

    def counters(self) -> Iterable[MetricCounter]:
        """Report the evicted tokens as a metric."""
        yield evicted_counter(0 if self.relief is None else self.relief.done.evicted_tokens)

    def info(self) -> Mapping[str, Any]:
        """Report what was done for lack of memory."""
        return {"memory_relief": None if self.relief is None else asdict(self.relief.done)}


class MemoryReliefOff(StepExtension, ServicePhase, MetricsPhase):
    """Reports that no memory of the host is relieved, because the KV pool is elsewhere."""

    def counters(self) -> Iterable[MetricCounter]:
        """Report that no tokens were evicted."""
        yield evicted_counter(0)

    def info(self) -> Mapping[str, Any]:
        """Return what ``MemoryRelief`` does, without a pool."""
        return {"memory_relief": None}


def evicted_counter(tokens: int) -> MetricCounter:
    """Return the metric of the evicted tokens."""
    return MetricCounter(EVICTED, EVICTED_TEXT, (), tokens)


def build(context: ExtensionContext) -> MemoryRelief | MemoryReliefOff:
    """Return the extension; on an accelerator, one that does nothing between steps."""
    return MemoryRelief() if context.device.type == "cpu" else MemoryReliefOff()
