"""The contract for one model on several devices: its ranks, what they compute together, and who starts them.

Rank 0 is the engine: it schedules, holds the prefix cache and samples. Every other rank, a *follower*, holds its part
of each layer (tensor parallelism; Shoeybi et al., 2019) and of the KV pool, and computes the steps that rank 0 tells
it. An executor decides where followers run and how they are reached; it sees neither models nor requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .config import ConfigError


class Collectives(ABC):
    """What the ranks of one model do together. All call the same in the same order, each with its own tensors.

    Args:
        rank: which of them this is, from 0 on.
        size: how many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, the same on each to the last bit. May write to ``x``, which is contiguous."""

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' ``x`` ``[rows, n]`` side by side: ``[rows, size * n]``. ``x`` is contiguous."""

    @abstractmethod
    def broadcast(self, x: Tensor) -> None:
        """Let every rank's ``x``, which is contiguous, be that of rank 0."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Nothing more will be called."""


class Alone(Collectives):
    """One rank, which has nobody to wait for."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, x: Tensor) -> Tensor:
        """``x``"""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """``x``"""
        return x

    def broadcast(self, x: Tensor) -> None:
        """Nothing."""


ALONE = Alone()


class Recorded(Collectives):
    """Those of ``inner``; while a decode step is captured, each call is handed to who captures it."""

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner.rank, inner.size)
        self.inner = inner
        self._do: Callable[[Callable[[], None]], None] | None = None

    @contextmanager
    def handed_to(self, do: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """Inside, ``do`` is given each call: it makes it, and lets replays make it again."""
        self._do = do
        try:
            yield
        finally:
            self._do = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """As ``inner``."""
        if self._do is None:
            return self.inner.all_reduce(x)
        self._do(lambda: _place(self.inner.all_reduce(x), x))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """As ``inner``."""
        if self._do is None:
            return self.inner.all_gather(x)
        found = x.new_empty(x.shape[0], self.size * x.shape[1])
        self._do(lambda: _place(self.inner.all_gather(x), found))
        return found

    def broadcast(self, x: Tensor) -> None:
        """As ``inner``."""
        if self._do is None:
            self.inner.broadcast(x)
        else:
            self._do(lambda: self.inner.broadcast(x))

    def close(self) -> None:
        """As ``inner``."""
        self.inner.close()


def _place(found: Tensor, place: Tensor) -> None:
    if found is not place:
        place.copy_(found)


def own_slice(size: int, ranks: Collectives, *, units: int | None = None, what: str = "columns") -> slice:
    """Which of ``size`` rows or columns this rank has.

    ``units`` pieces of equal size are never cut (attention heads); where there are fewer of them than ranks, several
    ranks have the same one. ``what`` they are called in errors. Raises ``ConfigError`` if they cannot be shared.
    """
    units = size if units is None else units
    if units % ranks.size == 0:
        each = size // ranks.size
        return slice(ranks.rank * each, (ranks.rank + 1) * each)
    if ranks.size % units == 0:
        each, first = size // units, ranks.rank * units // ranks.size
        return slice(first * each, (first + 1) * each)
    raise ConfigError(f"{units} {what} cannot be shared by {ranks.size} ranks; choose another --tp-size")


@dataclass(frozen=True, slots=True)
class Seat:
    """What a follower needs of its executor."""

    collectives: Collectives
    receive: Callable[[], bytes]
    """Waits for the next message of rank 0. Raises ``EOFError`` if none will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What an executor is asked for: followers of the ranks from 1 to ``size - 1``, each by one of two ways.

    In another process, ``command`` becomes one that reads ``line(rank, ticket)`` from its standard input, asks
    ``Executor.join`` for its seat, and ends when its standard input does. In a thread, ``follow`` is one.
    """

    size: int
    device: torch.device
    """Of rank 0. Rank ``n`` is on the same if it is the host, else on the ``n``-th behind it."""
    command: tuple[str, ...]
    line: Callable[[int, str], bytes]
    """From a rank and a text of the executor's own (where to find the others) to a line, its end included."""
    follow: Callable[[int, Seat], None]
    """Builds the rank's part of the model, then computes what rank 0 tells it; comes back when the engine ends."""


class Team(ABC):
    """The followers, as rank 0 sees them.

    ``collectives`` are those of rank 0.
    """

    collectives: Collectives

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Bring ``message`` to every follower, behind those before it. Does not wait until it is read."""

    @abstractmethod
    def failure(self) -> str | None:
        """Why a follower is gone that was not told to end; ``None`` while all are there. Called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of the followers. They have been told; those that do not heed it are not waited for long."""


class Executor(ABC):
    """Starts followers.

    Args:
        settings: its own, or ``None`` if it declares none.
    """

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @abstractmethod
    def start(self, order: Order) -> Team:
        """Called once, in rank 0's process and before it loads weights, so that all ranks load theirs at a time.

        May come back before the followers are ready. Raises ``ConfigError`` if they cannot run here.
        """

    def join(self, rank: int, size: int, device: torch.device, ticket: str) -> Seat:
        """Called in a follower's own process, with its device and the ticket that ``start`` gave it."""
        raise ConfigError(f"{type(self).__name__} has no followers in processes of their own")
