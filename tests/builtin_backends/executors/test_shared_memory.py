"""Collectives in shared memory, tested with threads that map the same memory separately."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_plug_backends.executors.shared_memory import (
    DEFAULT_SIZES,
    BufferSizes,
    BufferViews,
    SharedCollectives,
    is_offered,
    memory_file,
)

pytestmark = pytest.mark.skipif(not is_offered(), reason="processes cannot share memory in this way here")
BOUND = 120.0
"""Timeout in seconds, only reached on failure."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]


def rank_group(size: int, sizes: BufferSizes = DEFAULT_SIZES, **more: Any) -> list[SharedCollectives]:
    file = memory_file(size, sizes)
    results = [SharedCollectives(rank, size, os.dup(file), BOUND, **more, sizes=sizes) for rank in range(size)]
    os.close(file)
    return results


def together(ranks: list[SharedCollectives], work: Callable[[SharedCollectives], Any]) -> list[Any]:
    """Run ``work`` on all ranks at the same time; return the result of each rank."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [future.result() for future in [pool.submit(work, rank) for rank in ranks]]


def brought(rank: int, dtype: torch.dtype, *shape: int) -> Tensor:
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(rank + 31), dtype=torch.float32)
    return (noise * 8).to(dtype)


SMALL = BufferSizes(buffer=1024, shared_sum=512)
"""Small buffers, so that few numbers need several pieces and shared sums."""


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_of_them_in_turn(size: int, dtype: torch.dtype) -> None:
    """Results are right and equal on all ranks, whatever collectives ran before."""
    shapes = [(1, 1), (1, 7), (3, 40), (2, 100), (13, 77), (1, 2000), (1, 1)]

    def work(ranks: SharedCollectives) -> list[tuple[Tensor, ...]]:
        results: list[tuple[Tensor, ...]] = []
        for shape in shapes * 3:
            x = brought(ranks.rank, dtype, *shape)
            broadcast = x.clone()
            ranks.broadcast(broadcast)
            results.append((ranks.all_gather(x), broadcast, ranks.all_reduce(x)))
        return results

    every = together(rank_group(size, SMALL), work)
    for number, shape in enumerate(shapes * 3):
        parts = [brought(rank, dtype, *shape) for rank in range(size)]
        wide = torch.float32 if dtype.is_floating_point else dtype
        total = parts[0].to(wide, copy=True)
        for part in parts[1:]:
            total += part
        for gathered, broadcast, reduced in (results[number] for results in every):
            assert torch.equal(gathered, torch.cat(parts, 1))
            assert torch.equal(broadcast, parts[0])
            assert torch.equal(reduced, total.to(dtype)), "added up in the ranks' order and rounded once"


def test_real_buffers() -> None:
    x = torch.randn(3, DEFAULT_SIZES.buffer // 8)

    def work(ranks: SharedCollectives) -> tuple[Tensor, Tensor]:
        return ranks.all_gather(x), ranks.all_reduce(x.clone())

    for gathered, reduced in together(rank_group(2), work):
        assert torch.equal(gathered, torch.cat([x, x], 1)) and torch.equal(reduced, x + x)


def test_nobody_writes_over_what_others_still_read() -> None:
    """One rank is always late, while the others run ahead as far as possible."""

    def work(ranks: SharedCollectives) -> list[float]:
        results = []
        for step in range(300):
            x = torch.full((50,), float(step))
            ranks.broadcast(x)
            if ranks.rank == 2:
                os.sched_yield()
            x.fill_(float(step))
            results.append(float(ranks.all_reduce(x).sum()))
        return results

    expected = [150.0 * step for step in range(300)]
    assert together(rank_group(3), work) == [expected] * 3


def live_views() -> int:
    """Return the number of buffer views that are in memory."""
    gc.collect()
    return sum(isinstance(item, BufferViews) for item in gc.get_objects())


def test_views_of_many_shapes_are_forgotten() -> None:
    ranks, before = rank_group(2, BufferSizes(views=4)), live_views()

    def work(own: SharedCollectives) -> None:
        for length in range(1, 40):
            assert own.all_reduce(torch.ones(length)).tolist() == [2.0] * length

    together(ranks, work)
    assert 0 < live_views() - before <= 4 * len(ranks)


def test_a_rank_that_is_gone_is_named() -> None:
    gone = threading.Event()
    first, _ = rank_group(2, lost=lambda: "rank 1 of the model ended (signal 9)" if gone.is_set() else None)
    gone.set()
    with pytest.raises(ConnectionError, match=r"rank 1 of the model ended \(signal 9\)"):
        first.all_reduce(torch.ones(3))


def test_one_that_closes_keeps_nobody_waiting() -> None:
    first, second, third = rank_group(3)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(entry.all_reduce, torch.ones(3)) for entry in (second, third)]
        first.close()
        for item in waiting:
            with pytest.raises(ConnectionError, match="another rank has closed the connection"):
                item.result(BOUND)


def test_what_was_told_before_the_end_still_counts() -> None:
    first, second = rank_group(2)
    first.broadcast(torch.tensor([7.0]))
    first.close()
    x = torch.zeros(1)
    second.broadcast(x)
    assert x.item() == 7


def test_waiting_has_an_end() -> None:
    file = memory_file(2)
    alone = SharedCollectives(1, 2, file, 0.05)
    with pytest.raises(TimeoutError, match="rank 1 waited 0 s for rank 0"):
        alone.all_reduce(torch.ones(3))


def test_the_file_is_closed_once_it_is_mapped() -> None:
    file = memory_file(2)
    SharedCollectives(0, 2, file, BOUND)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
