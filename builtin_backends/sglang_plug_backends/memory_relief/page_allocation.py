"""Allocates the memory of KV slots on the host shortly before it is written to for the first time.

The system allocates the memory of a pool in huge pages at the first write, and clears each of them then. The slots of a
prompt reach the next pages of many layers in one step, which takes tens of milliseconds longer. Here a thread lets the
system allocate them while other slots are written to.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Sequence

from torch import Tensor

from sglang_plug import (
    CachePhase,
    ChunkView,
    ExtensionContext,
    ForwardPhase,
    KVPool,
    PrefixPool,
    StepExtension,
    memory_advice,
)
from sglang_plug_backends.background_thread import background_thread

AHEAD = 4096
"""Slots after the highest one in use whose memory is allocated; the thread begins when half of them are used."""
MIN_AHEAD = AHEAD // 4
"""Slots with memory below which the thread begins even in a step that computes prompts."""
PAUSES = 4
"""Pauses of the thread, as a multiple of the time that it works: steps need its core, too."""
POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14 and later, which Python does not name."""

Populate = Callable[[int, int], bool]
"""Lets the system allocate the memory from an address on, of a number of bytes; False if it cannot."""


class PageAllocation(StepExtension, CachePhase, ForwardPhase):
    """Tells ``PagesAhead`` which slots are in use, if the KV pool is in the host's memory."""

    def __init__(self, populate: Populate) -> None:
        self._populate = populate
        self.pages: PagesAhead | None = None

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Begin with the pool, which has no memory yet."""
        if prefixes.kv.k and prefixes.kv.k[0].device.type == "cpu":
            self.pages = PagesAhead(prefixes.kv, self._populate)

    def before_forward(self, chunks: Sequence[ChunkView]) -> None:
        """Note the slots of the step. A step with prompts takes longest: where possible, the next one is slowed."""
        if self.pages is not None and chunks:
            highest = max([chunk.sequence.slots[-1] for chunk in chunks])
            if self.pages.are_few(highest):
                self.pages.reach(highest, MIN_AHEAD if any(chunk.prefilling for chunk in chunks) else AHEAD // 2)

    def close(self) -> None:
        """End the thread."""
        if self.pages is not None:
            self.pages.close()


class PagesAhead:
    """A thread that lets the system allocate the memory of slots after those in use.

    Slots that were never used are given out in the order of their numbers.

    Args:
        kv: the pool.
        populate: allocates memory.
    """

    def __init__(self, kv: KVPool, populate: Populate) -> None:
        self._parts = kv.parts
        self._slots, self._populate = min(len(part) for part in self._parts), populate
        self._highest = 0
        self._wake, self._closed = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.allocated = 0
        """Slots from the first one on whose memory is allocated."""

    def are_few(self, slot: int, min_ahead: int = AHEAD // 2) -> bool:
        """Note that ``slot`` is in use; report whether fewer than ``min_ahead`` later slots have memory."""
        self._highest = max(self._highest, slot)
        return self.allocated < min(self._highest + min_ahead, self._slots)

    def reach(self, slot: int, min_ahead: int = AHEAD // 2) -> None:
        """Note that ``slot`` is in use; allocate the memory of later ones if fewer than ``min_ahead`` have some."""
        if self.are_few(slot, min_ahead) and not self._wake.is_set():
            if self._thread is None:
                self._thread = background_thread(self._run, "kv-page-allocation")
                self._thread.start()
            self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while not self._closed.is_set() and self.allocated < (end := min(self._highest + AHEAD, self._slots)):
                start = max(self.allocated, self._highest)  # lower ones are in use and have memory
                if not all(self._allocate(part, start, end) for part in self._parts):
                    self._slots = 0  # the first write allocates, as it does without this thread
                    return
                self.allocated = end
            if self._closed.is_set():
                return

    def _allocate(self, part: Tensor, start: int, end: int) -> bool:
        row = part.stride(0) * part.element_size()
        address = (part.data_ptr() + start * row) // mmap.PAGESIZE * mmap.PAGESIZE
        began = time.perf_counter()
        if self._closed.is_set() or not self._populate(address, part.data_ptr() + end * row - address):
            return False
        self._closed.wait(PAUSES * (time.perf_counter() - began))
        return True


def build(context: ExtensionContext) -> PageAllocation | None:
    """Return the extension; ``None`` on other devices than CPUs, and where the system cannot allocate ahead."""
    populate = memory_advice(POPULATE_WRITE) if context.device.type == "cpu" else None
    return None if populate is None else PageAllocation(populate)
