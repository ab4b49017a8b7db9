"""Tensor-parallel ranks in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_plug import LaunchSpec, RankEndpoint
from sglang_plug_backends.executors.threads import ThreadExecutor

BOUND = 60.0
"""Timeout in seconds, only reached on failure."""


def launch_spec(follow: Callable[[int, RankEndpoint], None], size: int = 3) -> LaunchSpec:
    return LaunchSpec(
        size=size,
        device=torch.device("cpu"),
        command=("false",),
        line=lambda rank, rendezvous: b"",
        run_worker_rank=follow,
    )


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + BOUND
    while not (result := true()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    """Four times half a unit in the last place adds up to two units, although each summand alone would be rounded
    away."""
    half = torch.finfo(dtype).eps / 2

    def follow(rank: int, endpoint: RankEndpoint) -> None:
        endpoint.receive()
        endpoint.collectives.all_reduce(torch.full((3,), half, dtype=dtype))
        with pytest.raises(EOFError):
            endpoint.receive()

    rank_group = ThreadExecutor().start(launch_spec(follow, size=5))
    rank_group.send(b"go")
    total = rank_group.collectives.all_reduce(torch.ones(3, dtype=dtype))
    rank_group.close()
    assert total.dtype == dtype and total.tolist() == [1 + 4 * half] * 3


def test_collectives_agree_on_all_ranks() -> None:
    results: dict[int, list[Any]] = {}

    def follow(rank: int, endpoint: RankEndpoint) -> None:
        assert endpoint.receive() == b"go"
        everyone = endpoint.collectives
        x = torch.full((2, 3), float(10**rank))
        kept = x.clone()
        reduced, gathered = everyone.all_reduce(x.clone()), everyone.all_gather(x)
        everyone.broadcast(kept)
        results[rank] = [reduced, gathered, kept]
        with pytest.raises(EOFError):
            endpoint.receive()

    rank_group = ThreadExecutor().start(launch_spec(follow))
    rank_group.send(b"go")
    x = torch.ones(2, 3)
    assert torch.equal(rank_group.collectives.all_reduce(x.clone()), torch.full((2, 3), 111.0))
    wide = rank_group.collectives.all_gather(x)
    assert wide.tolist() == [[1.0] * 3 + [10.0] * 3 + [100.0] * 3] * 2
    rank_group.collectives.broadcast(x)
    assert torch.equal(x, torch.ones(2, 3))
    until(lambda: len(results) == 2)
    for reduced, gathered, kept in results.values():
        assert torch.equal(reduced, torch.full((2, 3), 111.0))
        assert torch.equal(gathered, wide)
        assert torch.equal(kept, torch.ones(2, 3))
    rank_group.close()
    assert rank_group.failure() is None
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")]


def test_ranks_do_not_see_what_others_write_later() -> None:
    """Tensors are exchanged by reference, so no rank may continue before all ranks have read them."""

    def follow(rank: int, endpoint: RankEndpoint) -> None:
        x = torch.zeros(50)
        for step in range(200):
            x.fill_(float(step))
            assert torch.equal(endpoint.collectives.all_reduce(x), torch.full((50,), 2.0 * step))

    rank_group = ThreadExecutor().start(launch_spec(follow, size=2))
    x = torch.zeros(50)
    for step in range(200):
        x.fill_(float(step))
        assert torch.equal(rank_group.collectives.all_reduce(x), torch.full((50,), 2.0 * step))
    rank_group.close()
    assert rank_group.failure() is None


def test_one_that_fails_before_it_is_ready_stops_the_start() -> None:
    started: list[int] = []

    def follow(rank: int, endpoint: RankEndpoint) -> None:
        started.append(rank)
        if rank == 2:
            raise ValueError("no such weights")
        with pytest.raises(EOFError):
            endpoint.receive()

    with pytest.raises(ValueError, match="no such weights"):
        ThreadExecutor().start(launch_spec(follow))
    assert started == [1, 2], "one after the other"
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")])


def test_one_that_fails_later_is_told_and_keeps_nobody_waiting() -> None:
    def follow(rank: int, endpoint: RankEndpoint) -> None:
        endpoint.receive()
        raise RuntimeError("broken")

    rank_group = ThreadExecutor().start(launch_spec(follow, size=2))
    assert rank_group.failure() is None
    rank_group.send(b"go")
    with pytest.raises(threading.BrokenBarrierError):
        rank_group.collectives.all_reduce(torch.zeros(1))
    assert until(rank_group.failure) == "rank 1 failed: RuntimeError: broken"
    rank_group.close()
    assert rank_group.failure() is None, "what was told to end does not fail"
