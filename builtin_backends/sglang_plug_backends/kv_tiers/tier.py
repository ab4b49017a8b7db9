"""One KV store as a tier: errors count as misses, blocks are sealed if the store does not verify them itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any

from sglang_plug import KVBlock, KVStore, KVStoreError

from .rates import TransferRate

logger = logging.getLogger(__name__)

SEAL_BYTES = 16
RETRY_SECONDS = 5.0
"""Seconds for which a store that raised an error is left alone."""


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


class Tier:
    """A store with its counts. Its methods raise nothing but what ``clear`` says.

    Args:
        name: the store's, for the log and the statistics.
        store: is called by several threads.
        block_bytes: bytes of each block.
        clock: the time in seconds.
    """

    def __init__(
        self, name: str, store: KVStore, block_bytes: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.counts = name, TierCounts()
        self.rate = TransferRate()
        self._store, self._block_bytes, self._clock = store, block_bytes, clock
        self._lock = threading.Lock()
        self._retry = 0.0
        self._failing = False

    @property
    def index_in_memory(self) -> bool:
        """True if ``lookup`` waits for nothing."""
        return self._store.index_in_memory

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks the store has; none while it is left alone after an error."""
        present = self._call("lookup", lambda: self._store.lookup(keys))
        return [False] * len(keys) if present is None else present

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | None]:
        """Return the blocks with ``keys``; ``None`` in place of those that are missing, late or not what was stored."""
        began = self._clock()
        results = self._call("load", lambda: self._store.load(keys, deadline))
        seconds = self._clock() - began
        if results is None or len(results) != len(keys):
            results = [KVStoreError("the store failed")] * len(keys)
        blocks = [self._opened(key, result) for key, result in zip(keys, results, strict=True)]
        count = sum(block is not None for block in blocks)
        with self._lock:
            self.counts.loaded_blocks += count
            self.counts.loaded_bytes += count * self._block_bytes
            self.counts.load_seconds += seconds
            self.counts.failed_blocks += len(keys) - count
            if count == len(keys):
                self.rate.observe(count * self._block_bytes, seconds)
        return blocks

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep ``blocks``."""
        began = self._clock()
        sealed = blocks if self._store.verifies else [_sealed(block) for block in blocks]
        if self._call("store", lambda: (self._store.store(sealed), True)) is None:
            return
        with self._lock:
            self.counts.stored_blocks += len(blocks)
            self.counts.stored_bytes += sum(block.data.nbytes for block in blocks)
            self.counts.store_seconds += self._clock() - began

    def clear(self) -> None:
        """Drop all blocks. Raises what the store raises: then it must not be used any more."""
        self._store.clear()

    def info(self) -> dict[str, Any]:
        """Return contents and counts as plain data."""
        try:
            stats = asdict(self._store.stats())
        except Exception as error:
            stats = {"error": str(error)}
        with self._lock:
            return {**stats, **asdict(self.counts)}

    def close(self) -> None:
        """Close the store."""
        try:
            self._store.close()
        except Exception:
            logger.exception("KV store %s failed to close", self.name)

    def _call(self, method: str, call: Callable[[], Any]) -> Any:
        """Return the result of a method; ``None`` if it raised, or while the store is left alone."""
        if self._clock() < self._retry:
            return None
        try:
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

    def _opened(self, key: bytes, result: memoryview | KVStoreError) -> memoryview | None:
        """Return the block in a result of ``KVStore.load``; ``None`` if it is not what was stored."""
        if not isinstance(result, memoryview):
            return None
        data = result.cast("B")
        if not self._store.verifies:
            data, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
            if seal != _seal(key, data):
                return None
        return data if data.nbytes == self._block_bytes else None


def _seal(key: bytes, data: memoryview) -> bytes:
    return blake2b(data, digest_size=SEAL_BYTES, key=key).digest()


def _sealed(block: KVBlock) -> KVBlock:
    return KVBlock(block.key, memoryview(bytes(block.data) + _seal(block.key, block.data)))
