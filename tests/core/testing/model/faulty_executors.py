"""Executors with one planted fault each: thread ranks with wrong collectives or changed messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from sglang_plug import Collectives, Executor, LaunchSpec, RankEndpoint, RankGroup
from sglang_plug_backends.executors.threads import ThreadExecutor


class PassedOn(Collectives):
    """Collectives that forward every operation to those of threads; subclasses change one."""

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner.rank, inner.size)
        self.inner = inner

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.inner.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return self.inner.all_gather(x)

    def broadcast(self, x: Tensor) -> None:
        self.inner.broadcast(x)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of all ranks."""
        return self.inner.all_gather(x).chunk(self.size, dim=-1)


class LostSum(PassedOn):
    def all_reduce(self, x: Tensor) -> Tensor:
        return self.parts(x)[0].clone()


class Swapped(PassedOn):
    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.parts(x)[::-1], dim=-1)


class SumOfOneRank(PassedOn):
    """A sum of which rank 1 keeps its own part only."""

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = self.parts(x)
        return parts[1].clone() if self.rank == 1 else torch.stack(parts).sum(0)


class Doubled(PassedOn):
    def all_reduce(self, x: Tensor) -> Tensor:
        first, second, *_ = self.parts(x)
        return first + 2 * second


class FaultyGroup(RankGroup):
    """A group of ranks with faulty collectives or messages.

    Args:
        group: ranks in threads.
        collectives: makes those of rank 0.
    """

    def __init__(self, group: RankGroup, collectives: Callable[[Collectives], Collectives] = PassedOn) -> None:
        self.group, self.collectives = group, collectives(group.collectives)
        self.sent = 0

    def send(self, message: bytes) -> None:
        self.sent += 1
        self.pass_on(message)

    def pass_on(self, message: bytes) -> None:
        self.group.send(message)

    def failure(self) -> str | None:
        return self.group.failure()

    def close(self) -> None:
        self.group.close()


class LosesMessages(FaultyGroup):
    def pass_on(self, message: bytes) -> None:
        if self.sent != 5:
            self.group.send(message)


class RepeatsMessages(FaultyGroup):
    def pass_on(self, message: bytes) -> None:
        self.group.send(message)
        if self.sent == 5:
            self.group.send(message)


class CutsMessages(FaultyGroup):
    def pass_on(self, message: bytes) -> None:
        self.group.send(message[:-1] if self.sent == 5 else message)


class FaultyExecutor(Executor):
    """An executor of ranks in threads, with the fault that a subclass names."""

    collectives: ClassVar[type[PassedOn]] = PassedOn
    group: ClassVar[type[FaultyGroup]] = FaultyGroup
    started: ClassVar[list[RankGroup]] = []
    """The groups that were started; a test closes those that the conformance test could not close."""

    def start(self, spec: LaunchSpec) -> RankGroup:
        def follow(rank: int, endpoint: RankEndpoint) -> None:
            spec.run_worker_rank(rank, RankEndpoint(self.collectives(endpoint.collectives), endpoint.receive))

        group = self.group(ThreadExecutor().start(replace(spec, run_worker_rank=follow)), self.collectives)
        self.started.append(group)
        return group


class LostSumExecutor(FaultyExecutor):
    collectives = LostSum


class SwappedExecutor(FaultyExecutor):
    collectives = Swapped


class SumOfOneRankExecutor(FaultyExecutor):
    collectives = SumOfOneRank


class DoubledExecutor(FaultyExecutor):
    collectives = Doubled


class LosesMessagesExecutor(FaultyExecutor):
    group = LosesMessages


class RepeatsMessagesExecutor(FaultyExecutor):
    group = RepeatsMessages


class CutsMessagesExecutor(FaultyExecutor):
    group = CutsMessages
