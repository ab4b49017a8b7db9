"""The conformance test of executors finds planted faults in groups of ranks that share no model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sglang_plug import Collectives, Executor, LaunchSpec, RankEndpoint, RankGroup
from sglang_plug.testing.rank_groups.group import check_rank_group
from sglang_plug_backends.executors.threads import ThreadExecutor

TIMEOUT = 8


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_the_built_ins_pass(executor: str) -> None:
    check_rank_group(executor, 3, "cpu", 60)


class Wrapped(Collectives):
    """Collectives that forward every operation; subclasses change one."""

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner.rank, inner.size)
        self.inner = inner

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.inner.all_reduce(x)

    def all_gather(self, x: Tensor) -> Tensor:
        return self.inner.all_gather(x)

    def broadcast(self, x: Tensor) -> None:
        self.inner.broadcast(x)

    def close(self) -> None:
        self.inner.close()


class KeepsItsOwn(Wrapped):
    """A broadcast that leaves each rank's own tensor."""

    def broadcast(self, x: Tensor) -> None:
        self.inner.broadcast(x.clone())


class BroadcastsTheLast(Wrapped):
    def broadcast(self, x: Tensor) -> None:
        x.copy_(self.inner.all_gather(x)[:, -x.shape[1] :])


class Compressed(Wrapped):
    """A sum in bfloat16, converted back to the tensor's dtype."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.inner.all_reduce(x.bfloat16()).to(x.dtype)


class OwnFirst(Wrapped):
    """A sum that begins with the rank's own tensor, so that its rounding depends on the rank."""

    def all_reduce(self, x: Tensor) -> Tensor:
        parts = self.inner.all_gather(x).chunk(self.size, dim=1)
        total = x.clone()
        for other in range(1, self.size):
            total += parts[(self.rank + other) % self.size]
        return total


class Widened(Wrapped):
    """A sum in float32, whatever dtype the tensor has."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.inner.all_reduce(x.float())


class OneBuffer(Wrapped):
    """Sums that are all returned in the same memory."""

    def __init__(self, inner: Collectives) -> None:
        super().__init__(inner)
        self.buffer = torch.empty(1 << 20)

    def all_reduce(self, x: Tensor) -> Tensor:
        total = self.buffer[: x.numel()].view(x.shape).to(x.dtype)
        return total.copy_(self.inner.all_reduce(x))


class Stacked(Wrapped):
    """A gather that concatenates the tensors along the first dimension instead of the last."""

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat(self.inner.all_gather(x).chunk(self.size, dim=1))


class OwnAtTheEnd(Wrapped):
    """A gather that puts each rank's own tensor at the end."""

    def all_gather(self, x: Tensor) -> Tensor:
        parts = self.inner.all_gather(x).chunk(self.size, dim=1)
        return torch.cat([*(part for rank, part in enumerate(parts) if rank != self.rank), x], dim=1)


class NumbersOfNumpy(Wrapped):
    """A sum through numpy, which has no bfloat16."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return self.inner.all_reduce(torch.from_numpy(x.numpy()))


class MissesTheLastNumbers(Wrapped):
    """A sum in blocks of four numbers, which omits the remaining ones."""

    def all_reduce(self, x: Tensor) -> Tensor:
        total, whole = x.clone(), x.numel() // 4 * 4
        total.view(-1)[:whole] = self.inner.all_reduce(x.clone()).view(-1)[:whole]
        return total


class DoesNotWait(Wrapped):
    """A sum that returns the result of the previous call if the shape is the same."""

    last: Tensor | None = None

    def all_reduce(self, x: Tensor) -> Tensor:
        last, self.last = self.last, self.inner.all_reduce(x).clone()
        return last.clone() if last is not None and last.shape == x.shape and last.dtype == x.dtype else self.last


class WrappedGroup(RankGroup):
    """A group that forwards everything to another group; subclasses change one method."""

    def __init__(self, group: RankGroup) -> None:
        self.group, self.collectives = group, group.collectives

    def send(self, message: bytes) -> None:
        self.group.send(message)

    def failure(self) -> str | None:
        return self.group.failure()

    def close(self) -> None:
        self.group.close()


class DropsEmptyMessages(WrappedGroup):
    def send(self, message: bytes) -> None:
        if message:
            self.group.send(message)


class CutsLongMessages(WrappedGroup):
    """A group whose messages are cut at 64 KiB."""

    def send(self, message: bytes) -> None:
        self.group.send(message[: 1 << 16])


class SendsLongOnesLater(WrappedGroup):
    """A group in which a short message overtakes a long one."""

    waiting: bytes | None = None

    def send(self, message: bytes) -> None:
        waiting, self.waiting = self.waiting, None
        if len(message) > 1 << 20:
            self.waiting = message
        else:
            self.group.send(message)
        if waiting is not None:
            self.group.send(waiting)


class SwallowsFailures(WrappedGroup):
    def failure(self) -> str | None:
        return None


class FailsAlways(WrappedGroup):
    def failure(self) -> str | None:
        return self.group.failure() or "not ready"


class NeverCloses(WrappedGroup):
    """A group that waits at its end for a worker that has failed."""

    def close(self) -> None:
        self.group.close()
        threading.Event().wait()


class Monitored(WrappedGroup):
    """A group that leaves behind a thread that watches the workers."""

    def __init__(self, group: RankGroup) -> None:
        super().__init__(group)
        threading.Thread(target=threading.Event().wait, name="monitor", daemon=True).start()


class CannotCloseAfterFailure(WrappedGroup):
    def close(self) -> None:
        failure = self.group.failure()
        self.group.close()
        if failure is not None:
            raise RuntimeError(failure)


Follow = Callable[[int, RankEndpoint], None]


def swallowing(follow: Follow) -> Follow:
    """Return a worker program that swallows its exceptions."""

    def run(rank: int, endpoint: RankEndpoint) -> None:
        with suppress(Exception):
            follow(rank, endpoint)

    return run


def skipping(follow: Follow) -> Follow:
    """Return a worker program that drops the first message on every rank but 1."""

    def run(rank: int, endpoint: RankEndpoint) -> None:
        if rank > 1:
            endpoint.receive()
        follow(rank, endpoint)

    return run


def repeating(follow: Follow) -> Follow:
    """Return a worker program that receives each message of 100 bytes twice on rank 2."""

    def run(rank: int, endpoint: RankEndpoint) -> None:
        again = list[bytes]()

        def receive() -> bytes:
            if again:
                return again.pop()
            message = endpoint.receive()
            if len(message) == 100:
                again.append(message)
            return message

        follow(rank, replace(endpoint, receive=receive) if rank == 2 else endpoint)

    return run


def numbered_wrongly(follow: Follow) -> Follow:
    """Return a worker program whose ranks are numbered in reverse order."""
    return lambda rank, endpoint: follow(endpoint.collectives.size - rank, endpoint)


class BlockingSends(WrappedGroup):
    """A group whose ``send`` returns only when every worker has received the message."""

    def __init__(self, group: RankGroup, received: threading.Semaphore, workers: int) -> None:
        super().__init__(group)
        self.received, self.workers = received, workers

    def send(self, message: bytes) -> None:
        super().send(message)
        for _ in range(self.workers):
            self.received.acquire()


@dataclass(frozen=True)
class Faulty(Executor):
    """The built-in executor of threads, with a planted fault."""

    collectives: type[Wrapped] | None = None
    group: Callable[[RankGroup], RankGroup] | None = None
    follow: Callable[[Follow], Follow] | None = None
    size: int | None = None

    def start(self, spec: LaunchSpec) -> RankGroup:
        collectives, run = self.collectives, spec.run_worker_rank
        if collectives is not None:
            inner = run

            def run(rank: int, endpoint: RankEndpoint) -> None:
                inner(rank, replace(endpoint, collectives=collectives(endpoint.collectives)))

        if self.follow is not None:
            run = self.follow(run)
        started = ThreadExecutor().start(replace(spec, run_worker_rank=run, size=self.size or spec.size))
        if collectives is not None:
            started.collectives = collectives(started.collectives)
        return started if self.group is None else self.group(started)


def check(executor: Executor) -> None:
    check_rank_group("threads", 3, "cpu", TIMEOUT, executor)


def test_an_executor_that_is_passed_in_is_used() -> None:
    check(Faulty(collectives=Wrapped, group=WrappedGroup))


COLLECTIVES = [
    (KeepsItsOwn, "broadcast of torch.float32, on rank"),
    (BroadcastsTheLast, "broadcast of torch.float32, on rank"),
    (Compressed, "all_reduce of torch.float32, on rank"),
    (OwnFirst, "bitwise equal"),
    (Widened, "all_reduce of torch.bfloat16, .* of torch.float32, not"),
    (OneBuffer, "all_reduce of torch.float32, on rank"),
    (Stacked, "all_gather of .* returns .3, 1. of"),
    (OwnAtTheEnd, "all_gather of torch.float32, on rank"),
    (NumbersOfNumpy, "TypeError: Got unsupported ScalarType BFloat16|TypeError.'Got unsupported"),
    (MissesTheLastNumbers, "all_reduce of torch.float32, on rank"),
    (DoesNotWait, "all_reduce of torch.float32, on rank"),
]


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(("collectives", "message"), COLLECTIVES)
def test_wrong_operations_are_named(collectives: type[Wrapped], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(Faulty(collectives=collectives))


GROUPS = [
    (DropsEmptyMessages, "did not receive the messages as they were sent"),
    (CutsLongMessages, "did not receive the messages as they were sent"),
    (SendsLongOnesLater, "did not receive the messages as they were sent"),
    (SwallowsFailures, "failure.. is None although rank 1 has failed"),
    (FailsAlways, "failure.. is 'not ready' while all ranks run"),
    (NeverCloses, "takes longer than"),
    (Monitored, "the threads monitor still run"),
    (CannotCloseAfterFailure, "3 ranks .* fail: RuntimeError: rank 1 failed: ToldToFail"),
]


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(("group", "message"), GROUPS)
def test_wrong_groups_are_named(group: type[WrappedGroup], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(Faulty(group=group))


WORKERS = [
    (swallowing, "failure.. is None although rank 1 has failed"),
    (skipping, "rank 2 did not receive the messages"),
    (repeating, "rank 2 did not receive the messages"),
    (numbered_wrongly, "has the collectives of rank"),
]


@pytest.mark.planted_bug("executor")
@pytest.mark.parametrize(("follow", "message"), WORKERS)
def test_wrong_workers_are_named(follow: Callable[[Follow], Follow], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(Faulty(follow=follow))


@pytest.mark.planted_bug("executor")
def test_an_executor_of_two_ranks_is_named() -> None:
    with pytest.raises(
        AssertionError, match="of 3 has the collectives of rank . of 2|are those of rank 0 of 2, not of 3"
    ):
        check(Faulty(size=2))


@pytest.mark.planted_bug("executor")
def test_sending_that_waits_is_named() -> None:
    received = threading.Semaphore(0)

    def counted(follow: Follow) -> Follow:
        def run(rank: int, endpoint: RankEndpoint) -> None:
            def receive() -> bytes:
                message = endpoint.receive()
                received.release()
                return message

            follow(rank, replace(endpoint, receive=receive))

        return run

    with pytest.raises(AssertionError, match="takes longer than"):
        check(Faulty(follow=counted, group=lambda group: BlockingSends(group, received, 2)))
