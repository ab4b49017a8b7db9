"""Memory of KV slots is allocated a little ahead of its use."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug import KVPool, memory_advice
from sglang_plug_backends.memory_relief.page_allocation import (
    AHEAD,
    MIN_AHEAD,
    POPULATE_WRITE,
    PageAllocation,
    PagesAhead,
    Populate,
)

SLOTS, HEADS, DIM = 16_384, 4, 128


pytestmark = pytest.mark.skipif(
    memory_advice(POPULATE_WRITE) is None, reason="this system cannot allocate memory ahead"
)


def pool(values_in_keys: bool = False) -> KVPool:
    return KVPool(
        layers=2,
        slots=SLOTS,
        kv_heads=HEADS,
        dim=DIM,
        value_dim=DIM,
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        values_in_keys=values_in_keys,
    )


def resident(part: Tensor) -> list[bool]:
    """Return whether the memory of each page of ``part`` is allocated."""
    size = part.numel() * part.element_size()
    pages = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    assert mincore(part.data_ptr(), size, pages) == 0
    return [bool(page & 1) for page in pages]


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Calls:
    """An allocation function that records its calls and returns ``answer``, once ``may_return`` is set."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.ranges: list[tuple[int, int]] = []
        self.may_return = threading.Event()
        self.may_return.set()

    def __call__(self, start: int, size: int) -> bool:
        self.ranges.append((start, size))
        assert self.may_return.wait(30)
        return self.answer


@pytest.fixture
def pages() -> Iterator[Callable[..., PagesAhead]]:
    created: list[PagesAhead] = []

    def make(kv: KVPool, populate: Populate) -> PagesAhead:
        created.append(PagesAhead(kv, populate))
        return created[-1]

    yield make
    for pages in created:
        pages.close()


def test_memory_behind_the_used_slots_is_allocated_and_no_other(pages: Any) -> None:
    kv, populate = pool(), memory_advice(POPULATE_WRITE)
    ahead = pages(kv, populate)
    assert not any(resident(kv.k[0]))
    ahead.reach(100)
    wait_for(lambda: ahead.allocated == 100 + AHEAD)
    row = HEADS * DIM * 2
    for part in (*kv.k, *kv.v):
        pages_of_part = resident(part)
        assert all(pages_of_part[100 * row // mmap.PAGESIZE : (100 + AHEAD) * row // mmap.PAGESIZE])
        assert not any(pages_of_part[len(pages_of_part) // 2 :])
        assert not part.any()


def test_it_continues_when_half_of_the_memory_is_used_up_and_ends_with_the_pool(pages: Any) -> None:
    calls = Calls()
    ahead = pages(pool(), calls)
    ahead.reach(1)
    wait_for(lambda: ahead.allocated == 1 + AHEAD)
    count = len(calls.ranges)
    ahead.reach(AHEAD // 2)
    ahead.reach(AHEAD // 2 - 5)
    time.sleep(0.05)
    assert len(calls.ranges) == count == 4
    for slot in range(AHEAD, SLOTS, AHEAD // 4):
        ahead.reach(slot)
        wait_for(lambda slot=slot: ahead.allocated >= min(slot + AHEAD // 2, SLOTS))
    assert ahead.allocated == SLOTS


def test_a_step_does_not_wait_for_the_system(pages: Any) -> None:
    calls = Calls()
    calls.may_return.clear()
    ahead = pages(pool(), calls)
    for slot in range(1, SLOTS, 100):
        ahead.reach(slot)
    assert len(calls.ranges) <= 1 and ahead.allocated == 0
    calls.may_return.set()


def test_a_system_that_allocates_nothing_ahead_is_asked_once(pages: Any) -> None:
    calls = Calls(answer=False)
    ahead = pages(pool(), calls)
    for slot in range(1, SLOTS, 100):
        ahead.reach(slot)
        time.sleep(0.001)
    wait_for(lambda: not ahead.are_few(1))  # then steps are not searched for prompts any more
    assert len(calls.ranges) == 1 and ahead.allocated == 0


def test_memory_that_keys_and_values_share_is_allocated_once(pages: Any) -> None:
    calls = Calls()
    ahead = pages(pool(values_in_keys=True), calls)
    ahead.reach(1)
    wait_for(lambda: ahead.allocated > 0)
    assert len(calls.ranges) == 2


@dataclass
class Prefixes:
    kv: KVPool


@dataclass
class Chunk:
    sequence: Any
    prefilling: bool = False


@dataclass
class Slots:
    slots: list[int]


def test_the_highest_slot_of_a_step_counts_and_the_thread_ends_with_the_extension() -> None:
    calls = Calls()
    extension, before = PageAllocation(calls), set(threading.enumerate())
    extension.use_prefixes(Prefixes(pool()))  # type: ignore[arg-type]
    assert extension.pages is not None
    extension.before_forward([Chunk(Slots([5, 2000])), Chunk(Slots([7]))])  # type: ignore[list-item]
    wait_for(lambda: extension.pages is not None and extension.pages.allocated == 2000 + AHEAD)
    (thread,) = (thread for thread in threading.enumerate() if thread not in before)
    extension.close()
    assert not thread.is_alive()


def test_in_steps_with_prompts_memory_is_allocated_only_when_little_is_left() -> None:
    calls = Calls()
    extension = PageAllocation(calls)
    extension.use_prefixes(Prefixes(pool()))  # type: ignore[arg-type]
    assert extension.pages is not None

    def step(slot: int, *, prefilling: bool) -> None:
        extension.before_forward([Chunk(Slots([slot]), prefilling), Chunk(Slots([5]))])  # type: ignore[list-item]

    def is_allocated(end: int) -> bool:
        return extension.pages is not None and extension.pages.allocated >= end

    step(100, prefilling=True)
    wait_for(lambda: is_allocated(100 + AHEAD))
    count = len(calls.ranges)
    step(50 + AHEAD // 2 + 100, prefilling=True)
    time.sleep(0.05)
    assert len(calls.ranges) == count
    step(7, prefilling=False)
    wait_for(lambda: is_allocated(50 + AHEAD // 2 + 100 + AHEAD))
    end = extension.pages.allocated - MIN_AHEAD + 1
    step(end, prefilling=True)
    wait_for(lambda: is_allocated(end + AHEAD))
    extension.close()
