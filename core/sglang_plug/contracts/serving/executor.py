"""The contract of executors: running one model on several ranks by tensor parallelism.

Rank 0 is the engine: it schedules, holds the prefix cache and samples. Every other rank, a *worker rank*, holds its
part of each layer (tensor parallelism; Shoeybi et al., 2019) and of the KV pool, and computes the steps that rank 0
sends. An executor decides where worker ranks run and how they are reached; it handles neither models nor requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sglang_plug.config import ConfigError


class Collectives(ABC):
    """The collective operations of the ranks of one model. All ranks call the same ones in the same order.

    Args:
        rank: number of this rank, from 0 on.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    @abstractmethod
    def all_reduce(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' ``x``, bitwise equal on each. May write to ``x``, which is contiguous."""

    @abstractmethod
    def all_gather(self, x: Tensor) -> Tensor:
        """Return all ranks' ``x`` ``[rows, n]`` side by side: ``[rows, size * n]``. ``x`` is contiguous."""

    @abstractmethod
    def broadcast(self, x: Tensor) -> None:
        """Overwrite every rank's ``x``, which is contiguous, with that of rank 0."""

    def close(self) -> None:  # noqa: B027 (optional)
        """Release resources; no other method is called afterwards."""


class SingleRank(Collectives):
    """The collectives of a single rank, which have nothing to exchange."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def all_reduce(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Return ``x``."""
        return x

    def broadcast(self, x: Tensor) -> None:
        """Do nothing."""


SINGLE_RANK = SingleRank()


class CapturedCollectives(Collectives):
    """Collectives that delegate to ``inner``, and during a capture pass each call to the recorder.

    A ``StepExecutor`` receives them as ``ExecutionContext.collectives`` if several ranks share the model.
    """

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner.rank, inner.size)
        self.inner = inner
        self._record: Callable[[Callable[[], None]], None] | None = None

    @contextmanager
    def handed_to(self, record: Callable[[Callable[[], None]], None]) -> Iterator[None]:
        """Pass each call to ``record`` inside the context; it makes the call and lets replays repeat it."""
        self._record = record
        try:
            yield
        finally:
            self._record = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Call ``inner.all_reduce``, or record the call."""
        if self._record is None:
            return self.inner.all_reduce(x)
        self._record(lambda: _copy_into(self.inner.all_reduce(x), x))
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """Call ``inner.all_gather``, or record the call."""
        if self._record is None:
            return self.inner.all_gather(x)
        gathered = x.new_empty(x.shape[0], self.size * x.shape[1])
        self._record(lambda: _copy_into(self.inner.all_gather(x), gathered))
        return gathered

    def broadcast(self, x: Tensor) -> None:
        """Call ``inner.broadcast``, or record the call."""
        if self._record is None:
            self.inner.broadcast(x)
        else:
            self._record(lambda: self.inner.broadcast(x))

    def close(self) -> None:
        """Close ``inner``."""
        self.inner.close()


def _copy_into(result: Tensor, target: Tensor) -> None:
    if result is not target:
        target.copy_(result)


def shard_slice(size: int, ranks: Collectives, *, units: int | None = None, label: str = "columns") -> slice:
    """Return the slice of ``size`` rows or columns that belongs to this rank.

    ``units`` pieces of equal size are never split (attention heads); if there are fewer of them than ranks, several
    ranks have the same one. ``label`` names the pieces in errors. Raises ``ConfigError`` if they cannot be shared
    evenly.
    """
    units = size if units is None else units
    if units % ranks.size == 0:
        share = size // ranks.size
        return slice(ranks.rank * share, (ranks.rank + 1) * share)
    if ranks.size % units == 0:
        share, first = size // units, ranks.rank * units // ranks.size
        return slice(first * share, (first + 1) * share)
    raise ConfigError(f"{units} {label} cannot be shared by {ranks.size} ranks; choose another --tp-size")


@dataclass(frozen=True, slots=True)
class RankEndpoint:
    """A worker's connection to the other ranks."""

    collectives: Collectives
    receive: Callable[[], bytes]
    """Wait for the next message of rank 0. Raises ``EOFError`` if none will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """The arguments of an executor: how to launch workers of the ranks from 1 to ``size - 1``, in one of two ways.

    As a process: run ``command``, which reads ``line(rank, rendezvous)`` from its standard input, asks
    ``Executor.join`` for its endpoint, and ends when its standard input is closed. As a thread: call
    ``run_worker_rank``.
    """

    size: int
    device: torch.device
    """Device of rank 0. Rank ``n`` uses the same device if that is the host, else the ``n``-th device after it."""
    command: tuple[str, ...]
    line: Callable[[int, str], bytes]
    """Return the line for a worker's standard input, its end included, from a rank and the executor's rendezvous
    address."""
    run_worker_rank: Callable[[int, RankEndpoint], None]
    """Build the rank's part of the model and compute the steps that rank 0 sends; return when the engine ends."""


class RankGroup(ABC):
    """The group of workers, as rank 0 sees it.

    ``collectives`` are those of rank 0.
    """

    collectives: Collectives

    @abstractmethod
    def send(self, message: bytes) -> None:
        """Send ``message`` to every worker, after earlier messages. Does not wait until it is read."""

    @abstractmethod
    def failure(self) -> str | None:
        """Return why a worker ended unexpectedly; ``None`` while all are running. Called from any thread."""

    @abstractmethod
    def close(self) -> None:
        """End the remaining workers. They were asked to end; those that do not are not waited for long."""


class Executor(ABC):
    """Starts worker ranks.

    Args:
        settings: its settings, or ``None`` if its spec names none.
    """

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    @abstractmethod
    def start(self, spec: LaunchSpec) -> RankGroup:
        """Start the workers. Called once, in rank 0's process and before it loads weights, so that all ranks load in
        parallel.

        May return before the workers are ready. Raises ``ConfigError`` if they cannot run here.
        """

    def join(self, rank: int, size: int, device: torch.device, rendezvous: str) -> RankEndpoint:
        """Return the endpoint of a worker, in its own process, from the rendezvous address that ``start`` passed on."""
        raise ConfigError(f"{type(self).__name__} cannot start workers in separate processes")
