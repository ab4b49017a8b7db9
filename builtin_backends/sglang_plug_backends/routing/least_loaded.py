"""The least loaded of many replicas, without looking at all of them for every request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from sglang_plug import ReplicaLoad

MAX_COMPARED = 64
"""Replicas that are compared for one request."""

_tokens: Callable[[ReplicaLoad], int] = attrgetter("tokens")


class LeastLoaded:
    """Finds the replica with the fewest tokens in flight: of up to 64 replicas exactly, of more among 64 in turn.

    The fewest of 64 is close to the fewest of all, and every replica has its turn.
    """

    def __init__(self) -> None:
        self._start = 0

    def candidates(self, replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Return those of the compared replicas that have the fewest tokens, in their order."""
        compared = self._compared(replicas)
        fewest = min(map(_tokens, compared))
        return [load for load in compared if load.tokens == fewest]

    def _compared(self, replicas: Sequence[ReplicaLoad]) -> Sequence[ReplicaLoad]:
        count = len(replicas)
        if count <= MAX_COMPARED:
            return replicas
        start = self._start % count
        self._start = start + MAX_COMPARED
        compared = replicas[start : start + MAX_COMPARED]
        return compared if start + MAX_COMPARED <= count else [*compared, *replicas[: self._start - count]]
