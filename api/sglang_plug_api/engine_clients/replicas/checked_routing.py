"""A guard around a routing policy: an error of the policy must not stop the server from routing."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from sglang_plug import CacheAwareRouting, ReplicaLoad, Request, RoutingPolicy

logger = logging.getLogger(__name__)

Load = TypeVar("Load", bound=ReplicaLoad)
_number: Callable[[ReplicaLoad], int] = attrgetter("replica")


class CheckedRouting:
    """Passes calls on to ``policy``; once it has raised or chosen no replica, the one with the fewest tokens is used.

    Args:
        policy: the policy.
        name: its name in the log.
    """

    def __init__(self, policy: RoutingPolicy, name: str) -> None:
        self._name = name
        self._policy: RoutingPolicy | None = policy

    def choose(self, request: Request, replicas: Sequence[Load]) -> Load:
        """Return one of ``replicas``, in the order of their numbers; with a single one the policy is not asked."""
        if len(replicas) > 1 and self._policy is not None:
            try:
                number = self._policy.choose(request, replicas)
                index = bisect_left(replicas, number, key=_number)
                if index < len(replicas) and replicas[index].replica == number:
                    return replicas[index]
                self._disable(f"chose {number!r}, which is no replica that serves", None)
            except Exception as error:  # a plugin's code: its errors must not become those of requests
                self._disable(f"failed: {type(error).__name__}: {error}", error)
        return min(replicas, key=lambda load: (load.tokens, load.requests))

    def forget(self, replica: int) -> None:
        """Tell a policy that remembers prefixes that a replica's cache is empty."""
        if isinstance(self._policy, CacheAwareRouting):
            try:
                self._policy.forget(replica)
            except Exception as error:
                self._disable(f"failed in forget: {type(error).__name__}: {error}", error)

    def _disable(self, reason: str, error: Exception | None) -> None:
        self._policy = None
        logger.error(
            "%s %s; from now on the replica with the fewest tokens is used", self._name, reason, exc_info=error
        )
