"""Several engines that act as one: requests are routed, control calls reach all, engines that fail are replaced."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sglang_plug import EngineClient, EngineError, Output, ReplicaReply, ReplicaStatus, Request, RequestError, StepStats

from .checked_routing import CheckedRouting
from .combined_replies import check_alike, combined, combined_info
from .lasting_calls import LASTING, UPDATE, Call, LastingCalls
from .replica import Replica
from .restart import RestartingClient
from .router import Router

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
"""Failures of replicas after which a request ends with an error: one that ends engines must not end them all."""
QUEUE_FULL_STATUSES = (429, 503)
"""Statuses of refusals by a replica that has too many requests now, while another one may have room."""


class ReplicaGroup(EngineClient):
    """Serves requests with several engines, each of which is started again when it fails.

    A request that has no output yet when its replica fails is sent to another one, once. One that a replica refuses
    because its queue is full is refused only if those of all others are full, too. Control calls reach every
    replica that serves. Those with a lasting effect succeed on all of them or on none; one that is being started again
    repeats them before it serves.

    Args:
        makes: for each replica, a function that makes a new client, not started.
        routing: chooses the replica of a request.
        max_restarts: restarts of one replica within ``window`` seconds; one more failure is final.
        window: seconds.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        makes: Sequence[Callable[[], EngineClient]],
        routing: CheckedRouting,
        *,
        max_restarts: int,
        window: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routing, self._lasting = routing, LastingCalls()
        self._replicas = [
            Replica(
                number,
                RestartingClient(
                    make,
                    max_restarts=max_restarts,
                    window=window,
                    lasting=self._lasting,
                    failed=partial(self._forget, number),
                    restarted=self._restarted,
                    name=f"Replica {number}",
                ),
            )
            for number, make in enumerate(makes)
        ]
        self._router = Router(self._replicas, routing, clock)
        self._in_flight = set[str]()
        self._serving = asyncio.Event()
        self._serving.set()
        self._start_seconds = 1.0
        self._tasks = set[asyncio.Task[Any]]()
        self._watches: list[asyncio.Task[str]] = []

    async def start(self) -> Mapping[str, Any]:
        """Start all replicas at once, see ``EngineClient.start``; return what they have in common, and their sums."""
        began = time.monotonic()
        starts = [asyncio.create_task(replica.client.start()) for replica in self._replicas]
        try:
            infos = await asyncio.gather(*starts)
            check_alike(infos)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        self._start_seconds = time.monotonic() - began
        self._lasting.started_with(infos[0])
        for replica in self._replicas:
            replica.client.on_step(partial(note_step, replica))
            self._watches.append(asyncio.create_task(self._watch(replica)))
        return combined_info([ReplicaReply(number, info) for number, info in enumerate(infos)])

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Serve a request with one of the replicas; see ``EngineClient.submit``."""
        if request.id in self._in_flight:
            raise RequestError(f"Duplicate request ID: {request.id!r} is still being served")
        self._in_flight.add(request.id)
        tried, failures, refusal = list[int](), 0, None
        try:
            while True:
                await self._serving.wait()
                if refusal is None:
                    replica = self._choose(request, tried)
                else:
                    replica = self._choose_other(request, tried, replica.role, refusal)
                tried.append(replica.replica)
                has_output = False
                try:
                    async with contextlib.aclosing(replica.outputs(request)) as outputs:
                        async for output in outputs:
                            has_output = True
                            yield output
                    return
                except RequestError as error:
                    if has_output or error.status not in QUEUE_FULL_STATUSES:
                        raise
                    refusal = error
                except EngineError as error:
                    if has_output:
                        raise _named(error, replica) from error
                    failures += 1
                    if failures == MAX_ATTEMPTS:
                        raise EngineError(f"replicas {tried} failed: {error}", retry_after=error.retry_after) from error
                    logger.info("Request %r is retried: replica %d failed: %s", request.id, replica.replica, error)
        finally:
            self._in_flight.discard(request.id)

    def _choose(self, request: Request, tried: Sequence[int]) -> Replica:
        """Return the replica for a request. Raises ``EngineError`` if none serves that was not tried yet."""
        replica = self._router.choose(request, tried)
        if replica is None:
            raise self._failed()
        return replica

    def _choose_other(self, request: Request, tried: Sequence[int], role: str, refusal: RequestError) -> Replica:
        """Return a replica with this role that was not tried yet. Raises ``refusal`` if none serves."""
        try:
            replica = self._choose(request, tried)
        except EngineError:
            raise refusal from None
        if replica.role != role:
            raise refusal
        return replica

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call on every replica that serves, and return one answer; see ``EngineClient.control``."""
        return combined(name, await self.control_each(name, **arguments))

    async def control_each(self, name: str, **arguments: Any) -> Sequence[ReplicaReply]:
        """Run a control call on every replica that serves; one that fails meanwhile is left out.

        Raises ``RequestError`` if a replica refuses. A call with a lasting effect has no effect then.
        """
        call = Call(name, arguments)
        if name in LASTING:  # a caller that leaves must not leave the replicas different
            return await asyncio.shield(self._in_background(self._call_lasting(call)))
        replies, errors = await self._call(call)
        if refusal := next((error for error in errors.values() if not isinstance(error, EngineError)), None):
            raise refusal
        if not replies:
            raise self._failed()
        if name == "flush_cache":
            self._forget_all()
        return replies

    async def _call(self, call: Call) -> tuple[list[ReplicaReply], dict[int, Exception]]:
        """Run a control call on every replica that serves; return answers and errors."""
        serving = self._router.serving()
        outcomes = await asyncio.gather(
            *(replica.client.control(call.name, **call.arguments) for replica in serving), return_exceptions=True
        )
        replies, errors = list[ReplicaReply](), dict[int, Exception]()
        for replica, outcome in zip(serving, outcomes, strict=True):
            if isinstance(outcome, Exception):
                errors[replica.replica] = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                replies.append(ReplicaReply(replica.replica, outcome))
        return replies, errors

    async def _call_lasting(self, call: Call) -> list[ReplicaReply]:
        """Run a control call that changes all replicas, or none of them."""
        async with self._lasting.lock:
            if call.name == UPDATE:
                self._serving.clear()
            try:
                replies, errors = await self._call(call)
                if errors:
                    await self._undo(call, [reply.replica for reply in replies])
                    number, error = next(iter(errors.items()))
                    raise _named(error, self._numbered(number)) if isinstance(error, EngineError) else error
                if not replies:
                    raise self._failed()
                self._lasting.note(call)
            finally:
                self._serving.set()
                if call.name == UPDATE:
                    self._forget_all()
        return replies

    async def _undo(self, call: Call, numbers: Sequence[int]) -> None:
        """Undo a call on the replicas where it succeeded; end those where it cannot be undone, to start them again."""
        undoing = self._lasting.undoing(call)
        for number in numbers:
            client = self._numbered(number).client
            try:
                if undoing is None:
                    raise RequestError(f"{call.name} cannot be undone")
                await client.control(undoing.name, **undoing.arguments)
            except (RequestError, EngineError) as error:
                logger.error("Replica %d is started again, because %s failed on another one: %s", number, call, error)
                client.kill()

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step of every replica; they name the replica."""
        for replica in self._replicas:
            replica.client.on_step(partial(pass_step, replica.replica, listener))

    @property
    def replicas(self) -> Sequence[ReplicaStatus]:
        """The state of each replica."""
        return tuple(replica.status() for replica in self._replicas)

    @property
    def failure(self) -> str | None:
        """The reasons why no replica can serve; ``None`` while one of them can."""
        statuses = self.replicas
        if any(status.failure is None for status in statuses):
            return None
        return "; ".join(f"replica {status.replica}: {status.failure}" for status in statuses)

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat from any replica that serves."""
        return min((status.heartbeat_age for status in self.replicas if status.failure is None), default=0.0)

    async def wait_failed(self) -> str:
        """Wait until every replica has failed too often; return the reasons."""
        reasons = await asyncio.gather(*map(asyncio.shield, self._watches))
        return "; ".join(f"replica {number}: {reason}" for number, reason in enumerate(reasons))

    def kill(self) -> None:
        """End all replicas at once."""
        for replica in self._replicas:
            replica.client.kill()

    async def close(self) -> None:
        """Stop all replicas."""
        tasks = [*self._watches, *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.client.close() for replica in self._replicas))

    def _forget(self, number: int) -> None:
        """Forget what is known about a replica that has failed."""
        self._replicas[number].latest = None
        self._routing.forget(number)
        self._router.changed()

    def _restarted(self) -> None:
        self._router.changed()

    def _numbered(self, number: int) -> Replica:
        return next(replica for replica in self._replicas if replica.replica == number)

    def _forget_all(self) -> None:
        for replica in self._replicas:
            self._routing.forget(replica.replica)

    def _failed(self) -> EngineError:
        """Return the error for a request that no replica can serve."""
        is_lost = bool(self._replicas) and all(replica.lost for replica in self._replicas)
        reason = self.failure or "the other replicas cannot serve either"
        return EngineError(reason, retry_after=None if is_lost else math.ceil(self._start_seconds))

    async def _watch(self, replica: Replica) -> str:
        reason = await replica.client.wait_failed()
        replica.lost = True
        logger.error("Replica %d is not started again: %s", replica.replica, reason)
        return reason

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run ``work`` to its end, even if nobody waits for it any more."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def note_step(replica: Replica, stats: StepStats) -> None:
    replica.latest = stats


def pass_step(number: int, listener: Callable[[StepStats], None], stats: StepStats) -> None:
    listener(replace(stats, replica=number))


def _named(error: EngineError, replica: Replica) -> EngineError:
    """Return ``error`` with the number of the replica that failed."""
    return EngineError(f"replica {replica.replica}: {error}", retry_after=error.retry_after, replica=replica.replica)
