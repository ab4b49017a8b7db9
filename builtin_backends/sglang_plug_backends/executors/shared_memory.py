"""Collectives over shared memory: each rank writes where the others read.

A sum of one token's hidden states takes some ten microseconds, where sockets take some hundred, and a step has dozens
of sums.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import Collectives

LINE = 64
"""Bytes of a cache line; counters of two ranks are never in the same line."""
WORDS = LINE // 8
SPINS = 100
"""Polls of a counter before the processor is yielded to other threads."""
YIELDING = 0.00002
"""Seconds of polling with yields before a rank sleeps.

Waking takes twice as long, but a rank that keeps polling on a busy processor has used up its share of it when there is
something to compute.
"""
ASLEEP_FOR = 0.005
"""Maximum seconds of one sleep."""
POLL_SECONDS = 0.02
"""Seconds between two checks that the other ranks are alive."""
ASLEEP = 1
"""Distance in words from a rank's counter to the flag that shows that another process sleeps on the counter."""
SYS_FUTEX, FUTEX_WAIT, FUTEX_WAKE, EVERYBODY = 202, 0, 1, 2**31 - 1


def is_offered() -> bool:
    """Return whether processes can exchange tensors this way on this machine.

    A counter must become visible after the data written before it, which the processor has to guarantee.
    """
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSizes:
    """Sizes of the buffers that ranks share; the same on all ranks of a group."""

    buffer: int = 1 << 20
    """Bytes of each of a rank's two buffers; larger tensors are exchanged in several pieces."""
    shared_sum: int = 1 << 15
    """Bytes from which each rank sums one part and reads the others, instead of summing everything."""
    views: int = 256
    """Number of shapes whose buffer views are cached."""

    def total(self, ranks: int) -> int:
        """Return the bytes of the counters and buffers of a group."""
        return _header(ranks) + ranks * 2 * self.buffer


DEFAULT_SIZES = BufferSizes()


@dataclass(frozen=True, slots=True)
class BufferViews:
    """Buffer views for tensors of one dtype and length."""

    ranks: tuple[Tensor, ...]
    """The view ``[n]`` of each rank."""
    cuts: tuple[slice, ...]
    """The part of each rank if they share the work."""


class SharedCollectives(Collectives):
    """Buffers and counters in memory that all ranks have mapped.

    Every rank counts the exchanges that it has joined. Its data alternate between two buffers: it overwrites one when
    all ranks have counted the next exchange, and thus have read the previous one.

    Args:
        rank: of this process.
        size: how many there are.
        file: of ``memory_file``; taken over, and closed at once.
        timeout: seconds to wait for another rank.
        lost: why one of the other ranks has ended; ``None`` while they run.
        sizes: of the buffers in ``file``.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        file: int,
        timeout: float,
        lost: Callable[[], str | None] = lambda: None,
        *,
        sizes: BufferSizes = DEFAULT_SIZES,
    ) -> None:
        super().__init__(rank, size)
        self._sizes = sizes
        self._memory = mmap.mmap(file, sizes.total(size))
        os.close(file)
        self._counters = memoryview(self._memory).cast("q")
        self._data = torch.frombuffer(self._memory, dtype=torch.uint8)[_header(size) :].view(size, 2, sizes.buffer)
        self._timeout, self._lost = timeout, lost
        self._own, self._closed = rank * WORDS, size * WORDS
        self._others = [other * WORDS for other in range(size) if other != rank]
        self._count = self._before = self._half = 0
        self._sleep = Sleep(self._memory)
        self._views: dict[tuple[int, torch.dtype, int], BufferViews] = {}

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum ``x`` in place in the order of the ranks; 16-bit numbers are summed in float32."""
        flat = x.view(-1)
        for part in self._pieces(flat):
            self._sum(part)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate ``[rows, n]`` of all ranks to ``[rows, size * n]``."""
        rows, width = x.shape
        result = torch.empty(rows, self.size, width, dtype=x.dtype, device=x.device)
        max_elements = self._sizes.buffer // x.element_size()
        columns = min(width, max_elements)
        for left in range(0, width, columns):
            for top in range(0, rows, each := max(1, max_elements // columns)):
                part = x[top : top + each, left : left + columns]
                views = self._enter(part.dtype, part.numel())
                views.ranks[self.rank].view(part.shape).copy_(part)
                self._signal_and_wait()
                for rank, contributions in enumerate(views.ranks):
                    result[top : top + each, rank, left : left + columns].copy_(contributions.view(part.shape))
        return result.view(rows, self.size * width)

    def broadcast(self, x: Tensor) -> None:
        """Copy the tensor of rank 0 to all ranks in place."""
        for part in self._pieces(x.view(-1)):
            views = self._enter(part.dtype, part.numel())
            if self.rank == 0:
                views.ranks[0].copy_(part)
                self._signal()
            else:
                self._signal()
                self._wait_for(0, self._count)
                part.copy_(views.ranks[0])

    def close(self) -> None:
        """Close the buffers. A rank that still waits raises ``ConnectionError``."""
        self._counters[self._closed] = 1

    def _pieces(self, flat: Tensor) -> tuple[Tensor, ...]:
        max_elements = self._sizes.buffer // flat.element_size()
        return (flat,) if flat.numel() <= max_elements else torch.split(flat, max_elements)

    def _sum(self, x: Tensor) -> None:
        views = self._enter(x.dtype, x.numel())
        contributions = views.ranks
        contributions[self.rank].copy_(x)
        self._signal_and_wait()
        if x.numel() * x.element_size() < self._sizes.shared_sum:
            _add(contributions, x)
            return
        own = views.cuts[self.rank]
        _add([tensor[own] for tensor in contributions], x[own])
        contributions[self.rank][own].copy_(x[own])  # no other rank reads the old content
        self._signal_and_wait()
        for rank, cut in enumerate(views.cuts):
            if rank != self.rank:
                x[cut].copy_(contributions[rank][cut])

    def _enter(self, dtype: torch.dtype, length: int) -> BufferViews:
        """Return the buffer views of the next exchange once no rank reads them any more."""
        for other in self._others:
            self._wait_for(other, self._before)
        self._before, self._half = self._count + 1, 1 - self._half
        key = self._half, dtype, length
        if (result := self._views.get(key)) is None:
            if len(self._views) >= self._sizes.views:
                self._views.clear()
            result = self._views[key] = self._find(*key)
        return result

    def _find(self, half: int, dtype: torch.dtype, length: int) -> BufferViews:
        size = length * dtype.itemsize
        each = -(-length // self.size)
        return BufferViews(
            tuple(self._data[rank, half, :size].view(dtype) for rank in range(self.size)),
            tuple(slice(min(rank * each, length), min((rank + 1) * each, length)) for rank in range(self.size)),
        )

    def _signal(self) -> None:
        self._count += 1
        counters, own = self._counters, self._own
        counters[own] = self._count
        if counters[own + ASLEEP]:
            counters[own + ASLEEP] = 0
            self._sleep.wake(own)

    def _signal_and_wait(self) -> None:
        self._signal()
        for other in self._others:
            self._wait_for(other, self._count)

    def _wait_for(self, other: int, count: int) -> None:
        """Wait until rank ``other`` has counted to ``count``."""
        counters = self._counters
        for _ in range(SPINS):
            if counters[other] >= count:
                return
        began = polled = time.monotonic()
        while (value := counters[other]) < count:
            now = time.monotonic()
            if now - polled > POLL_SECONDS:
                self._poll(other, count, now - began)
                polled = now
            if now - began < YIELDING:
                os.sched_yield()
            else:
                counters[other + ASLEEP] = 1
                self._sleep.wait(other, value)

    def _poll(self, other: int, count: int, waited: float) -> None:
        if self._counters[self._closed] and self._counters[other] < count:
            raise ConnectionError("another rank has closed the connection, or ended")
        if (lost := self._lost()) is not None:
            raise ConnectionError(lost)
        if waited > self._timeout:
            raise TimeoutError(f"rank {self.rank} waited {waited:.0f} s for rank {other // WORDS}")


class Sleep:
    """Sleep until another process increments a counter."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._call = ctypes.CDLL(None).syscall
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._longest = ctypes.byref((ctypes.c_long * 2)(0, int(ASLEEP_FOR * 1e9)))

    def wait(self, word: int, value: int) -> None:
        """Sleep until ``wake`` or a timeout; return at once if the counter no longer equals ``value``."""
        self._call(SYS_FUTEX, self._at(word), FUTEX_WAIT, ctypes.c_uint32(value & 0xFFFFFFFF), self._longest, None, 0)

    def wake(self, word: int) -> None:
        """Wake all sleepers on the counter."""
        self._call(SYS_FUTEX, self._at(word), FUTEX_WAKE, ctypes.c_int(EVERYBODY), None, None, 0)

    def _at(self, word: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address + 8 * word)


def memory_file(size: int, sizes: BufferSizes = DEFAULT_SIZES) -> int:
    """Create an anonymous memory file for the buffers of ``size`` ranks and return its descriptor."""
    file = os.memfd_create("sglang-plug-ranks")
    os.ftruncate(file, sizes.total(size))
    return file


def _add(contributions: list[Tensor] | tuple[Tensor, ...], into: Tensor) -> None:
    """Sum in this order with a single rounding."""
    if len(contributions) == 2:
        torch.add(contributions[0], contributions[1], out=into)
        return
    if into.dtype.itemsize == 2 and into.is_floating_point():
        total = contributions[0].float()
        for tensor in contributions[1:]:
            total += tensor
        into.copy_(total)
        return
    torch.add(contributions[0], contributions[1], out=into)
    for tensor in contributions[2:]:
        into += tensor


def _header(size: int) -> int:
    return (size + 1) * LINE
