"""Routing policies that know nothing about prompts."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import ReplicaLoad, Request


class RoundRobin:
    """The replica after the one that was chosen last."""

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the next replica that serves."""
        numbers = [load.replica for load in replicas]
        self._last = next((number for number in numbers if number > self._last), numbers[0])
        return self._last


class LeastTokens:
    """The replica with the fewest tokens of requests in flight."""

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the least loaded replica; of several the one with fewer requests, then the first."""
        return min(replicas, key=lambda load: (load.tokens, load.requests, load.replica)).replica
