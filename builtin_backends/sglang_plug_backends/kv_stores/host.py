"""Blocks in the host's memory. The least recently used ones are dropped."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_plug import KVBlock, KVStore, KVStoreError, KVStoreStats

from .settings import HostSettings, parse_memory

OVERHEAD = 256
"""Bytes that an entry takes besides its content."""


class HostStore(KVStore):
    """Keeps blocks in memory.

    Args:
        settings: the budget.
    """

    index_in_memory = True
    verifies = True

    def __init__(self, settings: HostSettings) -> None:
        self._capacity = self.memory_bytes = parse_memory(settings.bytes)
        self._lock = threading.Lock()
        self._blocks: OrderedDict[bytes, memoryview] = OrderedDict()
        self._bytes = 0

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks are present."""
        with self._lock:
            present = [key in self._blocks for key in keys]
            # The first blocks of a prefix are of use to more prompts than the last ones: they become the youngest.
            for key, is_present in zip(reversed(keys), reversed(present), strict=True):
                if is_present:
                    self._blocks.move_to_end(key)
        return present

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        """Return the blocks themselves, not copies."""
        with self._lock:
            blocks = [self._blocks.get(key) for key in keys]
        return [KVStoreError("the block was dropped") if block is None else block for block in blocks]

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Keep blocks; drop the least recently used ones beyond the budget."""
        with self._lock:
            for block in reversed(blocks):
                if block.key in self._blocks or _size(block.data) > self._capacity:
                    continue
                self._blocks[block.key] = block.data
                self._bytes += _size(block.data)
            self._drop_oldest()

    def delete(self, keys: Sequence[bytes]) -> None:
        """Drop these blocks."""
        with self._lock:
            for key in keys:
                if (data := self._blocks.pop(key, None)) is not None:
                    self._bytes -= _size(data)

    def clear(self) -> None:
        """Drop all blocks."""
        with self._lock:
            self._drop_all()

    def stats(self) -> KVStoreStats:
        """Return the contents."""
        with self._lock:
            return KVStoreStats(blocks=len(self._blocks), bytes=self._bytes, capacity=self._capacity)

    def _drop_all(self) -> None:
        """Drop all that counts against the budget; the lock is held."""
        self._blocks.clear()
        self._bytes = 0

    def _drop_oldest(self) -> None:
        """Drop the least recently used blocks beyond the budget; the lock is held."""
        while self._bytes > self._capacity and self._blocks:
            self._bytes -= _size(self._blocks.popitem(last=False)[1])


def _size(data: memoryview) -> int:
    return data.nbytes + OVERHEAD


def open_store(folder: Path, capacity: int) -> HostStore:
    """Make a store of ``capacity`` bytes; it does not need the folder."""
    return HostStore(HostSettings(bytes=capacity))


def example() -> dict[str, Any]:
    """Return the arguments of ``check_kv_store`` besides the store's name."""
    return {"make": open_store}
