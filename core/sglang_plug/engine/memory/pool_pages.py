"""Returns the memory of unused slots of a KV pool on the host to the system."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterable
from functools import cache

from torch import Tensor

from sglang_plug.contracts.model.batch import KVPool

Run = tuple[int, int]
"""A range of slots: start and exclusive end."""
LEAST = 64 << 10
"""Smallest run in bytes for which the system call is worthwhile."""


def return_pages(kv: KVPool, runs: Iterable[Run]) -> int:
    """Return the whole memory pages that contain only slots of ``runs``; their bytes. The slots are zeros then.

    The pool's memory must be private and anonymous, as ``batch.zeros`` maps it on the host; on other devices, and on
    systems other than Linux, nothing happens.
    """
    advise = _advise()
    if advise is None or any(part.device.type != "cpu" for part in kv.k[:1]):
        return 0
    runs = list(runs)
    parts = kv.k if kv.values_in_keys else [*kv.k, *kv.v]
    return sum(_return(part, run, advise) for part in parts for run in runs)


def _return(part: Tensor, run: Run, advise: Callable[[int, int], bool]) -> int:
    row = part.stride(0) * part.element_size()
    start, end = (part.data_ptr() + slot * row for slot in run)
    start, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    return end - start if end - start >= LEAST and advise(start, end - start) else 0


@cache
def _advise() -> Callable[[int, int], bool] | None:
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return lambda start, size: madvise(start, size, mmap.MADV_DONTNEED) == 0
