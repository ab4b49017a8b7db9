"""Ranks as threads of the engine's process: slower than processes, but all in one debugger."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sglang_plug import Collectives, Executor, Order, Seat, Team

WAIT = 0.2
"""Seconds between two looks at a thread that is not ready yet."""
CLOSE_TIMEOUT = 5.0


class Meeting:
    """Where the threads hand each other their tensors.

    Args:
        size: how many they are.
    """

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._brought: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: Tensor, use: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """What ``use`` makes of all ranks' ``x``, none of which changes meanwhile.

        Raises ``threading.BrokenBarrierError`` once a rank has left.
        """
        self._brought[rank] = x
        self._barrier.wait()
        found = use(self._brought)
        self._barrier.wait()
        return found

    def leave(self) -> None:
        """Nobody waits for this rank any more."""
        self._barrier.abort()


class ThreadCollectives(Collectives):
    """Of ranks that share their memory."""

    def __init__(self, meeting: Meeting, rank: int, size: int, arrived: Callable[[], None] = lambda: None) -> None:
        super().__init__(rank, size)
        self._meeting, self._arrived = meeting, arrived

    def all_reduce(self, x: Tensor) -> Tensor:
        """Added up in the ranks' order, by each of them."""
        return self._exchange(x, _sum)

    def all_gather(self, x: Tensor) -> Tensor:
        """``[rows, n]`` to ``[rows, size * n]``."""
        return self._exchange(x, partial(torch.cat, dim=-1))

    def broadcast(self, x: Tensor) -> None:
        """Rank 0's values, in every rank's tensor."""
        first = self._exchange(x, lambda brought: brought[0].clone())
        x.copy_(first)

    def _exchange(self, x: Tensor, use: Callable[[list[Tensor]], Tensor]) -> Tensor:
        self._arrived()
        return self._meeting.exchange(self.rank, x, use)


class ThreadTeam(Team):
    """Followers in threads."""

    def __init__(self, size: int) -> None:
        self._meeting = Meeting(size)
        self.collectives = ThreadCollectives(self._meeting, 0, size)
        self._inboxes: list[queue.SimpleQueue[bytes | None]] = []
        self._threads: list[threading.Thread] = []
        self._failed: dict[int, BaseException] = {}
        self._closing = False

    def start(self, order: Order) -> None:
        """Start them one after the other: a model is built with settings that hold for the whole process.

        Raises what a follower raises before it is ready.
        """
        for rank in range(1, order.size):
            inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            ready = threading.Event()
            seat = Seat(
                ThreadCollectives(self._meeting, rank, order.size, ready.set), partial(_receive, inbox, ready.set)
            )
            thread = threading.Thread(target=self._follow, args=(order, rank, seat), name=f"rank {rank}", daemon=True)
            self._inboxes.append(inbox)
            self._threads.append(thread)
            thread.start()
            while not ready.wait(WAIT) and thread.is_alive():
                continue
            if (error := self._failed.get(rank)) is not None:
                self.close()
                raise error

    def _follow(self, order: Order, rank: int, seat: Seat) -> None:
        try:
            order.follow(rank, seat)
        except BaseException as error:
            self._failed[rank] = error
            self._meeting.leave()

    def send(self, message: bytes) -> None:
        """To every follower's queue."""
        for inbox in self._inboxes:
            inbox.put(message)

    def failure(self) -> str | None:
        """What the first follower that failed raised."""
        for rank, error in sorted(self._failed.items()):
            if not self._closing:
                return f"rank {rank} failed: {type(error).__name__}: {error}"
        return None

    def close(self) -> None:
        """Wake those that wait, and wait for them."""
        self._closing = True
        for inbox in self._inboxes:
            inbox.put(None)
        self._join(CLOSE_TIMEOUT)
        self._meeting.leave()  # whoever still waits for a rank that is gone
        self._join(WAIT)

    def _join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)


class ThreadExecutor(Executor):
    """Followers in threads of this process."""

    def start(self, order: Order) -> Team:
        """Comes back once every follower has loaded its part."""
        team = ThreadTeam(order.size)
        team.start(order)
        return team


def _receive(inbox: queue.SimpleQueue[bytes | None], arrived: Callable[[], None]) -> bytes:
    arrived()
    message = inbox.get()
    if message is None:
        raise EOFError("the engine has ended")
    return message


def _sum(brought: list[Tensor]) -> Tensor:
    total = brought[0].clone()
    for one in brought[1:]:
        total += one
    return total
