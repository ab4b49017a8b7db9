"""Ranks as threads of the engine's process: slower than processes, but all in one debugger."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sglang_plug import Collectives, Executor, LaunchSpec, RankEndpoint, RankGroup

WAIT = 0.2
"""Seconds between two checks of a thread that is not ready yet."""
CLOSE_TIMEOUT = 5.0


class TensorExchange:
    """Exchange point of the threads' tensors.

    Args:
        size: how many they are.
    """

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size)
        self._contributions: list[Tensor] = [torch.empty(0)] * size

    def exchange(self, rank: int, x: Tensor, use: Callable[[list[Tensor]], Tensor]) -> Tensor:
        """Return ``use`` applied to all ranks' ``x``, none of which changes meanwhile.

        Raises ``threading.BrokenBarrierError`` once a rank has left.
        """
        self._contributions[rank] = x
        self._barrier.wait()
        result = use(self._contributions)
        self._barrier.wait()
        return result

    def leave(self) -> None:
        """Leave the exchange; no other rank waits for this one any more."""
        self._barrier.abort()


class ThreadCollectives(Collectives):
    """Collectives of ranks in one address space."""

    def __init__(
        self, rendezvous: TensorExchange, rank: int, size: int, arrived: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(rank, size)
        self._rendezvous, self._arrived = rendezvous, arrived

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum ``x`` in the order of the ranks; every rank computes the sum."""
        return self._exchange(x, _sum)

    def all_gather(self, x: Tensor) -> Tensor:
        """Concatenate ``[rows, n]`` of all ranks to ``[rows, size * n]``."""
        return self._exchange(x, partial(torch.cat, dim=-1))

    def broadcast(self, x: Tensor) -> None:
        """Copy the values of rank 0 to every rank's tensor."""
        first = self._exchange(x, lambda contributions: contributions[0].clone())
        x.copy_(first)

    def _exchange(self, x: Tensor, use: Callable[[list[Tensor]], Tensor]) -> Tensor:
        self._arrived()
        return self._rendezvous.exchange(self.rank, x, use)


class ThreadRankGroup(RankGroup):
    """A rank group whose worker ranks are threads."""

    def __init__(self, size: int) -> None:
        self._rendezvous = TensorExchange(size)
        self.collectives = ThreadCollectives(self._rendezvous, 0, size)
        self._inboxes: list[queue.SimpleQueue[bytes | None]] = []
        self._threads: list[threading.Thread] = []
        self._failed: dict[int, BaseException] = {}
        self._closing = False

    def start(self, spec: LaunchSpec) -> None:
        """Start the worker ranks one after the other, because building a model sets process-wide settings.

        Raises the exception of a worker rank that fails before it is ready.
        """
        for rank in range(1, spec.size):
            inbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            ready = threading.Event()
            endpoint = RankEndpoint(
                ThreadCollectives(self._rendezvous, rank, spec.size, ready.set), partial(_receive, inbox, ready.set)
            )
            thread = threading.Thread(
                target=self._follow, args=(spec, rank, endpoint), name=f"rank {rank}", daemon=True
            )
            self._inboxes.append(inbox)
            self._threads.append(thread)
            thread.start()
            while not ready.wait(WAIT) and thread.is_alive():
                continue
            if (error := self._failed.get(rank)) is not None:
                self.close()
                raise error

    def _follow(self, spec: LaunchSpec, rank: int, endpoint: RankEndpoint) -> None:
        try:
            spec.run_worker_rank(rank, endpoint)
        except BaseException as error:
            self._failed[rank] = error
            self._rendezvous.leave()

    def send(self, message: bytes) -> None:
        """Put a message into every worker rank's queue."""
        for inbox in self._inboxes:
            inbox.put(message)

    def failure(self) -> str | None:
        """Return the error of the first worker rank that failed, or ``None``."""
        for rank, error in sorted(self._failed.items()):
            if not self._closing:
                return f"rank {rank} failed: {type(error).__name__}: {error}"
        return None

    def close(self) -> None:
        """Wake waiting worker ranks and join their threads."""
        self._closing = True
        for inbox in self._inboxes:
            inbox.put(None)
        self._join(CLOSE_TIMEOUT)
        self._rendezvous.leave()  # a worker rank that still waits for a lost rank
        self._join(WAIT)

    def _join(self, seconds: float) -> None:
        for thread in self._threads:
            thread.join(seconds)


class ThreadExecutor(Executor):
    """Executor that runs worker ranks as threads of this process."""

    def start(self, spec: LaunchSpec) -> RankGroup:
        """Start the worker ranks and return once every one has loaded its part."""
        rank_group = ThreadRankGroup(spec.size)
        rank_group.start(spec)
        return rank_group


def _receive(inbox: queue.SimpleQueue[bytes | None], arrived: Callable[[], None]) -> bytes:
    arrived()
    message = inbox.get()
    if message is None:
        raise EOFError("the engine has ended")
    return message


def _sum(contributions: list[Tensor]) -> Tensor:
    """Sum in this spec, 16-bit numbers with a single rounding."""
    if len(contributions) > 2 and contributions[0].dtype.itemsize == 2 and contributions[0].is_floating_point():
        return _sum([tensor.float() for tensor in contributions]).to(contributions[0].dtype)
    total = contributions[0].clone()
    for tensor in contributions[1:]:
        total += tensor
    return total
