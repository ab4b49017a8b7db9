"""Returns the memory of unused slots of a KV pool on the host to the system."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable

from torch import Tensor

from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.system.memory_advice import memory_advice

Run = tuple[int, int]
"""A range of slots: start and exclusive end."""
DONT_NEED = 4
"""``MADV_DONTNEED`` of Linux; Python names it only on systems that have it."""
LEAST = 64 << 10
"""Smallest run in bytes for which the system call is worthwhile."""


def return_pages(kv: KVPool, runs: Iterable[Run]) -> int:
    """Return the whole memory pages that contain only slots of ``runs``; their bytes. The slots are zeros then.

    The pool's memory must be private and anonymous, as ``batch.zeros`` maps it on the host; on other devices, and on
    systems other than Linux, nothing happens.
    """
    advise = memory_advice(DONT_NEED)
    if advise is None or any(part.device.type != "cpu" for part in kv.k[:1]):
        return 0
    runs = list(runs)
    return sum(_return(part, run, advise) for part in kv.parts for run in runs)


def _return(part: Tensor, run: Run, advise: Callable[[int, int], bool]) -> int:
    row = part.stride(0) * part.element_size()
    start, end = (part.data_ptr() + slot * row for slot in run)
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    return end - start if end - start >= LEAST and advise(start, end - start) else 0
