"""Advice to the system about memory of this process: which pages it should allocate, and which are not needed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable


def memory_advice(advice: int) -> Callable[[int, int], bool] | None:
    """Return a function that gives the system one ``advice``, such as ``mmap.MADV_DONTNEED``, by Linux's numbers.

    It takes the address of a page and a number of bytes, and returns False if the system refuses. ``None`` on other
    systems than Linux.
    """
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return lambda start, size: madvise(start, size, advice) == 0
