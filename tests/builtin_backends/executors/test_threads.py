"""Ranks in threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sglang_plug import Order, Seat
from sglang_plug_backends.executors.threads import ThreadExecutor

BOUND = 60.0
"""Seconds, only reached by what fails."""


def order(follow: Callable[[int, Seat], None], size: int = 3) -> Order:
    return Order(
        size=size, device=torch.device("cpu"), command=("false",), line=lambda rank, ticket: b"", follow=follow
    )


def until(true: Callable[[], Any]) -> Any:
    end = time.monotonic() + BOUND
    while not (found := true()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_what_all_do_together() -> None:
    seen: dict[int, list[Any]] = {}

    def follow(rank: int, seat: Seat) -> None:
        assert seat.receive() == b"go"
        everyone = seat.collectives
        x = torch.full((2, 3), float(10**rank))
        kept = x.clone()
        reduced, gathered = everyone.all_reduce(x.clone()), everyone.all_gather(x)
        everyone.broadcast(kept)
        seen[rank] = [reduced, gathered, kept]
        with pytest.raises(EOFError):
            seat.receive()

    team = ThreadExecutor().start(order(follow))
    team.send(b"go")
    x = torch.ones(2, 3)
    assert torch.equal(team.collectives.all_reduce(x.clone()), torch.full((2, 3), 111.0))
    wide = team.collectives.all_gather(x)
    assert wide.tolist() == [[1.0] * 3 + [10.0] * 3 + [100.0] * 3] * 2
    team.collectives.broadcast(x)
    assert torch.equal(x, torch.ones(2, 3))
    until(lambda: len(seen) == 2)
    for reduced, gathered, kept in seen.values():
        assert torch.equal(reduced, torch.full((2, 3), 111.0))
        assert torch.equal(gathered, wide)
        assert torch.equal(kept, torch.ones(2, 3))
    team.close()
    assert team.failure() is None
    assert not [one for one in threading.enumerate() if one.name.startswith("rank ")]


def test_ranks_do_not_see_what_others_write_later() -> None:
    """Tensors are exchanged by reference: nobody may go on before all have read."""

    def follow(rank: int, seat: Seat) -> None:
        x = torch.zeros(50)
        for step in range(200):
            x.fill_(float(step))
            assert torch.equal(seat.collectives.all_reduce(x), torch.full((50,), 2.0 * step))

    team = ThreadExecutor().start(order(follow, size=2))
    x = torch.zeros(50)
    for step in range(200):
        x.fill_(float(step))
        assert torch.equal(team.collectives.all_reduce(x), torch.full((50,), 2.0 * step))
    team.close()
    assert team.failure() is None


def test_one_that_fails_before_it_is_ready_stops_the_start() -> None:
    started: list[int] = []

    def follow(rank: int, seat: Seat) -> None:
        started.append(rank)
        if rank == 2:
            raise ValueError("no such weights")
        with pytest.raises(EOFError):
            seat.receive()

    with pytest.raises(ValueError, match="no such weights"):
        ThreadExecutor().start(order(follow))
    assert started == [1, 2], "one after the other"
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("rank ")])


def test_one_that_fails_later_is_told_and_keeps_nobody_waiting() -> None:
    def follow(rank: int, seat: Seat) -> None:
        seat.receive()
        raise RuntimeError("broken")

    team = ThreadExecutor().start(order(follow, size=2))
    assert team.failure() is None
    team.send(b"go")
    with pytest.raises(threading.BrokenBarrierError):
        team.collectives.all_reduce(torch.zeros(1))
    assert until(team.failure) == "rank 1 failed: RuntimeError: broken"
    team.close()
    assert team.failure() is None, "what was told to end does not fail"
