"""Routing policies that know nothing about prompts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from sglang_plug import ReplicaLoad, Request

from .least_loaded import LeastLoaded

_number: Callable[[ReplicaLoad], int] = attrgetter("replica")
_requests: Callable[[ReplicaLoad], int] = attrgetter("requests")


class RoundRobin:
    """The replica after the one that was chosen last."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the next replica that serves."""
        index = bisect_right(replicas, self._last, key=_number)
        self._last = replicas[index % len(replicas)].replica
        return self._last


class LeastTokens:
    """The replica with the fewest tokens of requests in flight; of very many, one of those with few."""

    def __init__(self) -> None:
        self._least_loaded = LeastLoaded()

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the least loaded replica; of several the one with fewer requests, then the first."""
        candidates = self._least_loaded.candidates(replicas)
        return candidates[0].replica if len(candidates) == 1 else min(candidates, key=_requests).replica
