"""Memory in huge pages: reading a large matrix from normal pages loses a third of the bandwidth or more."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import torch
from torch import Tensor

from sglang_plug.system.freed_memory import return_freed_memory

HUGE = 2 << 20
BLOCK = 128 << 20
"""Bytes that are requested from the system at a time."""
LINE = 64


class PageMemory:
    """Allocator of pieces of large blocks. A block returns to the system when its last piece is freed."""

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.uint8)

    def take(self, count: int) -> Tensor:
        """Allocate ``count`` uninitialised bfloat16 numbers, aligned to a cache line."""
        size = -(-count * torch.bfloat16.itemsize // LINE) * LINE
        if size > len(self._block):
            return_freed_memory()  # matrices that were packed into an earlier block
            self._block = _huge(max(size, BLOCK))
        piece, self._block = self._block[:size], self._block[size:]
        return piece.view(torch.bfloat16)[:count]


def _huge(size: int) -> Tensor:
    """Map ``size`` bytes from the start of a huge page; the system allocates them at the first write."""
    memory = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=start)
