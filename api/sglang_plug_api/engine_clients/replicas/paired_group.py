"""Prefill engines and decode engines that act as one engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from sglang_plug import EngineClient, Output, Request

from .checked_routing import CheckedRouting
from .group import ReplicaGroup
from .prefill_engines import PrefillEngines
from .prefilled_client import PrefilledClient, generates
from .replica import DECODE, PREFILL, Replica
from .router import Router


class PairedGroup(ReplicaGroup):
    """A group in which prefill engines compute prompts and send them to the decode engine that serves the request.

    Requests that only compute their prompts are served by prefill engines. If no engine of one role serves, those of
    the other role do everything. Restarts, retries and control calls are those of ``ReplicaGroup``; the decode engines
    have the first numbers.

    Args:
        decode: for each decode engine, a function that makes a new client, not started.
        prefill: the same for each prefill engine.
        routing: chooses the decode engine of a request.
        prefill_routing: chooses its prefill engine.
        max_restarts: see ``ReplicaGroup``.
        window: see ``ReplicaGroup``.
        closed: called when the group is closed.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        decode: Sequence[Callable[[], EngineClient]],
        prefill: Sequence[Callable[[], EngineClient]],
        routing: CheckedRouting,
        prefill_routing: CheckedRouting,
        *,
        max_restarts: int,
        window: float,
        closed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        makes: list[Callable[[], EngineClient]] = [partial(self._prefilled, make) for make in decode]
        super().__init__([*makes, *prefill], routing, max_restarts=max_restarts, window=window, clock=clock)
        self._closed = closed
        decoding, prefilling = self._replicas[: len(decode)], self._replicas[len(decode) :]
        for replica in self._replicas:
            replica.role = DECODE if replica in decoding else PREFILL
        self._decode_router = Router(decoding, routing, clock)
        self._prefill_engines = PrefillEngines(prefilling, prefill_routing, clock)

    def _prefilled(self, make: Callable[[], EngineClient]) -> EngineClient:
        return PrefilledClient(make(), self._prefill)

    def _choose(self, request: Request, tried: Sequence[int]) -> Replica:
        """Return the replica for a request. Raises ``EngineError`` if none serves that was not tried yet."""
        usual, other = self._decode_router, self._prefill_engines.router
        if not generates(request):
            usual, other = other, usual
        replica = usual.choose(request, tried) or other.choose(request, tried)
        if replica is None:
            raise self._failed()
        return replica

    async def _prefill(self, request: Request) -> Output | None:
        return await self._prefill_engines.compute(request)

    async def close(self) -> None:
        """Stop all replicas."""
        await super().close()
        self._closed()

    def _forget(self, number: int) -> None:
        super()._forget(number)
        self._prefill_engines.forget(number)
        self._changed()

    def _forget_all(self) -> None:
        super()._forget_all()
        for replica in self._replicas:
            self._prefill_engines.forget(replica.replica)

    def _restarted(self) -> None:
        super()._restarted()
        self._changed()

    def _changed(self) -> None:
        self._decode_router.changed()
        self._prefill_engines.router.changed()
