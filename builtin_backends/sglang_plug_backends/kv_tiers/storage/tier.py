"""One KV store as a tier: errors count as misses, blocks are sealed if the store does not verify them itself."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from sglang_plug import KVBlock, KVStore, KVStoreError, panics_as_errors

from .rates import Rate

logger = logging.getLogger(__name__)

SEAL_BYTES = 16
RETRY_SECONDS = 5.0
"""Seconds for which a store that raised an error is left alone."""
TRIAL_SECONDS = 30.0
"""Seconds after which a rate that was too low is measured again."""
MAX_RECENT = 1 << 16
"""Maximum number of keys that are remembered of a store that cannot be asked without waiting."""
RECENT_SECONDS = 300.0
"""Seconds for which a key is remembered: stores drop blocks, and other servers empty them, without notice."""


@dataclass(slots=True)
class TierCounts:
    """Counters of a tier since the start."""

    loaded_blocks: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    stored_blocks: int = 0
    stored_bytes: int = 0
    store_seconds: float = 0.0
    failed_blocks: int = 0
    """Blocks that the store said it had, and that could not be loaded."""
    errors: int = 0
    """Calls that raised an error."""


class RecentKeys:
    """The keys of blocks that a store had a short while ago, for stores that cannot be asked without waiting.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._seen: OrderedDict[bytes, float] = OrderedDict()

    def note(self, keys: Sequence[bytes], present: Sequence[bool]) -> None:
        """Note which of the blocks the store has now."""
        with self._lock:
            for key, is_present in zip(keys, present, strict=True):
                self._seen.pop(key, None)
                if is_present:
                    self._seen[key] = self._clock()
            while len(self._seen) > MAX_RECENT:
                self._seen.popitem(last=False)

    def contains(self, keys: Sequence[bytes]) -> list[bool]:
        """Report for each key whether the store had its block in the last minutes."""
        with self._lock:
            oldest = self._clock() - RECENT_SECONDS
            return [self._seen.get(key, oldest) > oldest for key in keys]

    def clear(self) -> None:
        """Forget all keys."""
        with self._lock:
            self._seen.clear()


class Tier:
    """A store with its counts. Its methods raise nothing but what ``clear`` says.

    Args:
        name: the store's, for the log and the statistics.
        store: is called by several threads.
        clock: the time in seconds.
    """

    def __init__(self, name: str, store: KVStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.counts = name, TierCounts()
        self.load_rate, self.lookup_rate = Rate(), Rate()
        self._store, self._clock = store, clock
        self._recent = RecentKeys(clock)
        self._lock = threading.Lock()
        self._retry = self._tried = 0.0
        self._failing = False

    @property
    def index_in_memory(self) -> bool:
        """True if ``lookup`` waits for nothing."""
        return self._store.index_in_memory

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks the store has; none while it is left alone after an error."""
        if self._is_left_alone:
            return [False] * len(keys)
        began = self._clock()
        present = self._call("lookup", lambda: list(self._store.lookup(keys)))
        if not self.index_in_memory:
            now = self._clock()
            with self._lock:
                self.lookup_rate.observe(1, now - began, now)
        if present is None or len(present) != len(keys):
            return [False] * len(keys)
        self._note(keys, present)
        return present

    def lacks(self, keys: Sequence[bytes]) -> list[bool]:
        """Report without waiting which blocks the store probably does not have; counts as a use of the others.

        While the store is left alone after an error, it lacks none: they could not be stored.
        """
        if self._is_left_alone:
            return [False] * len(keys)
        present = self.lookup(keys) if self.index_in_memory else self._recent.contains(keys)
        return [not is_present for is_present in present]

    def load_seconds(self, size: int) -> float:
        """Return how long loading ``size`` bytes probably takes; 0 if that is not known."""
        return self.load_rate.seconds(size)

    @property
    def lookup_seconds(self) -> float:
        """Seconds that a call of ``lookup`` probably takes."""
        return self.lookup_rate.seconds(1)

    def begin_trial(self) -> bool:
        """Report whether it is time to measure the rate of loading again: it was not observed or tried for a while."""
        with self._lock:
            now = self._clock()
            if now - max(self.load_rate.observed, self._tried) < TRIAL_SECONDS:
                return False
            self._tried = now
            return True

    def load(self, keys: Sequence[bytes], deadline: float, size: int | None) -> list[memoryview | None]:
        """Return the blocks with ``keys``, of ``size`` bytes each; ``None``: of any size.

        ``None`` replaces those that are missing, late or not what was stored.
        """
        if self._is_left_alone:
            return [None] * len(keys)
        began = self._clock()
        results = self._call("load", lambda: self._store.load(keys, deadline))
        ended = self._clock()
        in_time = results is not None and ended < deadline
        if results is None or len(results) != len(keys):
            results = [KVStoreError("the store failed")] * len(keys)
        blocks = [self._opened(key, result, size) for key, result in zip(keys, results, strict=True)]
        if in_time:  # otherwise the store may have those that did not arrive
            self._note(keys, [block is not None for block in blocks])
        sizes = [block.nbytes for block in blocks if block is not None]
        count, total = len(sizes), sum(sizes)
        with self._lock:
            self.counts.loaded_blocks += count
            self.counts.loaded_bytes += total
            self.counts.load_seconds += ended - began
            self.counts.failed_blocks += len(keys) - count
            # Blocks that are missing say nothing about the rate. If it is late with all of them, one takes that long.
            if count or ended >= deadline:
                self.load_rate.observe(total or size or 0, ended - began, ended)
        return blocks

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep ``blocks``."""
        began = self._clock()
        sealed = blocks if self._store.verifies else [_sealed(block) for block in blocks]
        if self._call("store", lambda: (self._store.store(sealed), True)) is None:
            return
        self._note([block.key for block in blocks], [True] * len(blocks))
        with self._lock:
            self.counts.stored_blocks += len(blocks)
            self.counts.stored_bytes += sum(block.data.nbytes for block in blocks)
            self.counts.store_seconds += self._clock() - began

    def clear(self) -> None:
        """Drop all blocks. Raises what the store raises: then it must not be used any more."""
        with panics_as_errors():
            self._store.clear()
        self._recent.clear()

    def info(self) -> dict[str, Any]:
        """Return contents and counts as plain data."""
        try:
            with panics_as_errors():
                stats = asdict(self._store.stats())
        except Exception as error:
            stats = {"error": str(error)}
        with self._lock:
            return {**stats, **asdict(self.counts)}

    def close(self) -> None:
        """Close the store."""
        try:
            with panics_as_errors():
                self._store.close()
        except Exception:
            logger.exception("KV store %s failed to close", self.name)

    @property
    def _is_left_alone(self) -> bool:
        return self._clock() < self._retry

    def _note(self, keys: Sequence[bytes], present: Sequence[bool]) -> None:
        """Remember which of the blocks the store has, unless it can be asked at any time."""
        if not self.index_in_memory:
            self._recent.note(keys, present)

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        """Return the result of a method; ``None`` if it raised, or while the store is left alone."""
        if self._is_left_alone:
            return None
        try:
            with panics_as_errors():
                result = call()
        except Exception as error:
            with self._lock:
                self.counts.errors += 1
                self._retry = self._clock() + RETRY_SECONDS
                first, self._failing = not self._failing, True
            if first:
                logger.warning("KV store %s: %s() failed, prefixes are computed instead: %s", self.name, method, error)
            return None
        if self._failing:
            self._failing = False
            logger.info("KV store %s works again", self.name)
        return result

    def _opened(self, key: bytes, result: memoryview | KVStoreError, size: int | None) -> memoryview | None:
        """Return the block in a result of ``KVStore.load``; ``None`` if it is not what was stored."""
        if not isinstance(result, memoryview):
            return None
        data = result.cast("B")
        if not self._store.verifies:
            data, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
            if seal != _seal(key, data):
                return None
        return data if size in (None, data.nbytes) else None


def _seal(key: bytes, data: memoryview) -> bytes:
    return blake2b(data, digest_size=SEAL_BYTES, key=key).digest()


def _sealed(block: KVBlock) -> KVBlock:
    return KVBlock(block.key, memoryview(bytes(block.data) + _seal(block.key, block.data)))
