"""Stores blocks in the background, in the order in which they were computed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from sglang_plug import AsyncHostCopy, KVBlock
from sglang_plug_backends.background_thread import background_thread
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

logger = logging.getLogger(__name__)


Encode = Callable[[Sequence[Tensor]], Sequence[memoryview]]
"""Makes blocks of tensors that were copied to the host."""


@dataclass(frozen=True, slots=True)
class _Copied:
    """Tensors that were copied from the device, and the keys of the blocks that they become."""

    keys: Sequence[bytes]
    tensors: AsyncHostCopy
    encode: Encode


@dataclass(frozen=True, slots=True)
class _Call:
    """A function to call in its turn, and the bytes of the queue that it refers to."""

    function: Callable[[], None]
    bytes: int = 0
    needed: bool = False
    """True if it is called even if everything before it is dropped."""


class PrefixStores:
    """The queue of blocks that are to be stored, and the thread that stores them.

    Args:
        tiers: where they are stored.
        max_bytes: maximum number of bytes in the queue; a block that does not fit is not stored.
    """

    def __init__(self, tiers: Tiers, max_bytes: int) -> None:
        self._tiers, self._max_bytes = tiers, max_bytes
        self._queue: deque[_Copied | list[KVBlock] | _Call] = deque()
        self._changed = threading.Condition()
        self._queued, self._queued_bytes = dict[bytes, int](), 0
        self._closed = False
        self.dropped_blocks = 0
        """Blocks that were not stored because the queue was full."""
        self._thread = background_thread(self._run, "kv-stores")
        self._thread.start()

    @property
    def queued_blocks(self) -> int:
        """Number of blocks that are not stored yet."""
        with self._changed:
            return len(self._queued)

    def blocks_to_store(self, keys: Sequence[bytes], size: int) -> list[int]:
        """Return the indices of the blocks, of ``size`` bytes each, that some tier lacks and the queue has room for."""
        with self._changed:
            queued = [key in self._queued for key in keys]
            room = (self._max_bytes - self._queued_bytes) // size
        missing = self._tiers.missing(keys)
        numbers = [number for number in range(len(keys)) if missing[number] and not queued[number]]
        self.dropped_blocks += max(0, len(numbers) - room)
        return numbers[: max(0, room)]

    def put(self, keys: Sequence[bytes], tensors: AsyncHostCopy, encode: Encode, size: int) -> None:
        """Store the blocks with ``keys``, of ``size`` bytes each, that ``encode`` makes of ``tensors``."""
        self._put(_Copied(keys, tensors, encode), dict.fromkeys(keys, size))

    def promote(self, blocks: list[KVBlock]) -> None:
        """Store blocks that were loaded from one tier in those that lack them, if the queue has room."""
        with self._changed:
            has_room = self._queued_bytes + sum(block.data.nbytes for block in blocks) <= self._max_bytes
        if has_room:
            self._put(blocks, {block.key: block.data.nbytes for block in blocks})

    def then(self, call: Callable[[], None], size: int = 0, *, needed: bool = False) -> bool:
        """Call ``call`` once everything that is queued now is stored. It must not raise.

        If the queue is dropped meanwhile, the call is made only if it is ``needed``.

        Returns False, and never calls it, if the queue has no room for the ``size`` bytes that it refers to.
        """
        with self._changed:
            if size and self._queued_bytes + size > self._max_bytes:
                return False
            self._queued_bytes += size
            self._queue.append(_Call(call, size, needed))
            self._changed.notify()
        return True

    def clear(self, seconds: float) -> bool:
        """Drop the queue and empty all tiers; return False if that failed, or takes longer than ``seconds``.

        Calls in the queue that are needed are made before.
        """
        done, succeeded = threading.Event(), list[bool]()

        def clear() -> None:
            try:
                self._tiers.clear()
                succeeded.append(True)
            except Exception:
                logger.exception("A KV store could not be emptied")
            finally:
                done.set()

        with self._changed:
            calls = [item for item in self._queue if isinstance(item, _Call) and item.needed]
            self._queue.clear()
            self._queued.clear()
            self._queued_bytes = sum(call.bytes for call in calls)
            self._queue.extend([*calls, _Call(clear)])
            self._changed.notify()
        return done.wait(seconds) and bool(succeeded)

    def wait(self, seconds: float) -> bool:
        """Wait until everything that is queued now is stored; return False if that takes longer."""
        done = threading.Event()
        self.then(done.set, needed=True)
        return done.wait(seconds)

    def close(self, seconds: float) -> None:
        """Store what is queued, for at most so long, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _put(self, item: _Copied | list[KVBlock], sizes: Mapping[bytes, int]) -> None:
        with self._changed:
            self._queue.append(item)
            for key, size in sizes.items():
                self._queued_bytes += size - self._queued.get(key, 0)
                self._queued[key] = size
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    if self._closed:
                        return
                    self._changed.wait()
                item = self._queue.popleft()
                self._queued_bytes -= item.bytes if isinstance(item, _Call) else 0
            if isinstance(item, _Call):
                item.function()
                continue
            try:
                self._store(item)
            except Exception:
                logger.exception("Computed prefixes could not be stored")

    def _store(self, item: _Copied | list[KVBlock]) -> None:
        blocks = item if isinstance(item, list) else []
        keys = [block.key for block in blocks] if isinstance(item, list) else item.keys
        try:
            if isinstance(item, _Copied):
                contents = item.encode(item.tensors.read())
                blocks = [KVBlock(key, data) for key, data in zip(keys, contents, strict=True)]
            self._tiers.store(blocks)
        finally:
            with self._changed:
                self._queued_bytes -= sum(self._queued.pop(key, 0) for key in keys)
