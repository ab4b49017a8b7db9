"""Returns freed memory of the C library's allocator to the system; does nothing where that is not glibc.

The engine runs with an allocator that keeps freed memory (``clients/engine_process.py``), since steps allocate
the same sizes again and again. Memory that is freed for good, like that of packed weights, is given back explicitly.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

M_MMAP_THRESHOLD = -3
"""A parameter of glibc's ``mallopt``."""
LARGE = 4 << 20
"""Bytes of a block that is given back when it is freed."""


def return_freed_memory() -> None:
    """Give back whole free pages of the allocator.

    It looks at every free block, so it is meant for moments at which much was freed, not for each step.
    """
    _function("malloc_trim")(0)


def return_large_blocks() -> bool:
    """Give freed blocks of at least ``LARGE`` bytes back to the system; true if the C library can be told so.

    By default glibc raises this limit to 32 MiB as blocks are freed, and keeps what is smaller for each thread: several
    threads that decode images one after the other then hold as much memory as if they decoded them together.
    """
    return bool(_function("mallopt")(M_MMAP_THRESHOLD, LARGE))


@cache
def _function(name: str) -> Callable[..., Any]:
    """Return a function of the C library, or one that returns 0 if the library does not have it."""
    if sys.platform != "linux":
        return lambda *_: 0
    function: Callable[..., Any] = getattr(ctypes.CDLL(None), name, lambda *_: 0)
    return function
