"""Chooses the replica of a request, without asking every replica for every request."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sglang_plug import Request

from .checked_routing import CheckedRouting
from .replica import Replica

HEARTBEAT_TIMEOUT = 10.0
"""Seconds without a heartbeat after which a replica gets requests only if no other replica has a recent heartbeat."""
POLL_SECONDS = 1.0
"""Seconds after which the heartbeats of all replicas are checked again."""


class Router:
    """Routes requests to the replicas that serve. It keeps a list of them until one of them changes.

    Args:
        replicas: all replicas, in the order of their numbers.
        routing: chooses one of those that serve.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self, replicas: Sequence[Replica], routing: CheckedRouting, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._replicas = replicas
        self._routing = routing
        self._clock = clock
        self._candidates: Sequence[Replica] = ()
        self._next_poll = 0.0

    def changed(self) -> None:
        """Note that a replica has failed, or serves again."""
        self._next_poll = 0.0

    def serving(self) -> list[Replica]:
        """Return the replicas that serve now."""
        return [replica for replica in self._replicas if replica.client.failure is None]

    def choose(self, request: Request, tried: Sequence[int] = ()) -> Replica | None:
        """Return the replica for a request, none of ``tried``; ``None`` if no other one serves."""
        now = self._clock()
        if now >= self._next_poll:
            self._poll_replicas(now)
        candidates = self._without(tried)
        if not candidates:
            self._poll_replicas(now)
            candidates = self._without(tried)
        while candidates:
            replica = self._routing.choose(request, candidates)
            if replica.client.failure is None:
                return replica
            self._poll_replicas(now)  # it has failed without a notification
            candidates = self._without(tried)
        return None

    def _without(self, tried: Sequence[int]) -> Sequence[Replica]:
        if not tried:
            return self._candidates
        untried = [replica for replica in self._candidates if replica.replica not in tried]
        return untried or [replica for replica in self.serving() if replica.replica not in tried]

    def _poll_replicas(self, now: float) -> None:
        serving = self.serving()
        responsive = [replica for replica in serving if replica.client.heartbeat_age <= HEARTBEAT_TIMEOUT]
        staying = [replica for replica in responsive or serving if not replica.leaving]
        self._candidates = staying or responsive or serving
        self._next_poll = now + POLL_SECONDS
