"""Requests with one prefix go to one replica, so that it is computed and cached once.

The policy remembers a digest of every block of the prompts that it routed, and the replicas that have them. It
remembers as many blocks of a replica as fit into the replica's KV pool, the least recently used are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sglang_plug import ReplicaLoad, Request, prefix_digests

from .least_loaded import LeastLoaded

UNKNOWN_CAPACITY = 1 << 16
"""KV slots of a replica that has not reported a step yet."""
BISECTED = 8
"""Searching a list of replicas costs less than going through it if it has so many times the entries."""

_number: Callable[[ReplicaLoad], int] = attrgetter("replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinitySettings:
    """Settings given as ``--set prefix-affinity.KEY=VALUE``."""

    block: int = 64
    """Tokens of a block: prefixes count in whole blocks."""
    max_blocks: int = 1024
    """Leading blocks of a prompt that are looked at."""
    slack_tokens: int = 2048
    """Tokens that a replica with the prefix may have more in flight than the least loaded one."""
    slack_ratio: float = 1.5
    """Ratio of tokens in flight that it may have on top of ``slack_tokens``."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a value that is out of bounds."""
        for name, least in (("block", 1), ("max_blocks", 1), ("slack_tokens", 0), ("slack_ratio", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {least}")


class PrefixAffinity:
    """The replica that computed the longest prefix of the prompt, unless it is overloaded.

    A prompt that no replica knows goes to the replica with the fewest tokens in flight, and of several to the one that
    was given the fewest blocks, so that an idle server spreads its prefixes over all caches.
    """

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._least = LeastLoaded()
        self._holders: dict[bytes, dict[int, None]] = {}
        """Digest of a prefix -> replicas that have computed it."""
        self._blocks: dict[int, OrderedDict[bytes, None]] = {}
        """Replica -> its digests, the least recently used first. Of one prompt the longest prefix comes first, so that
        a replica that has a prefix has all shorter ones."""

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the replica, and remember that it computes the prompt now."""
        settings = self._settings
        digests = list(prefix_digests(request, settings.block, settings.max_blocks))
        idle = self._least.candidates(replicas)
        least = idle[0] if len(idle) == 1 else min(idle, key=self._count)
        most = least.tokens * settings.slack_ratio + settings.slack_tokens
        holders = [load for load in self._longest(digests, replicas) if load.tokens <= most]
        chosen = min(holders, key=self._order) if holders else least
        self._remember(chosen, digests)
        return chosen.replica

    def forget(self, replica: int) -> None:
        """Drop what is known about a replica whose cache is empty."""
        for digest in self._blocks.pop(replica, ()):
            self._drop(replica, digest)

    def _count(self, load: ReplicaLoad) -> int:
        return len(self._blocks.get(load.replica, ()))

    def _order(self, load: ReplicaLoad) -> tuple[int, int, int]:
        return load.tokens, self._count(load), load.replica

    def _longest(self, digests: Sequence[bytes], replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Return those of ``replicas`` that have the longest prefix that one of them has.

        Whoever has a prefix has all shorter ones, so the longest known one is found by bisection.
        """
        holders = self._holders
        known = bisect_left(digests, True, key=lambda digest: digest not in holders)
        for digest in reversed(digests[:known]):
            if loads := _of_numbers(replicas, holders[digest]):
                return loads
        return []

    def _remember(self, load: ReplicaLoad, digests: Sequence[bytes]) -> None:
        replica, holders = load.replica, self._holders
        blocks = self._blocks.setdefault(replica, OrderedDict())
        for digest in reversed(digests):
            if digest in blocks:
                blocks.move_to_end(digest)
                continue
            blocks[digest] = None
            if (numbers := holders.get(digest)) is None:
                holders[digest] = {replica: None}
            else:
                numbers[replica] = None
        capacity = UNKNOWN_CAPACITY if load.latest is None else load.latest.capacity
        most = max(capacity // self._settings.block, len(digests))
        while len(blocks) > most:
            oldest, _ = blocks.popitem(last=False)
            self._drop(replica, oldest)

    def _drop(self, replica: int, digest: bytes) -> None:
        holders = self._holders[digest]
        holders.pop(replica, None)
        if not holders:
            del self._holders[digest]


def _of_numbers(replicas: Sequence[ReplicaLoad], numbers: Collection[int]) -> list[ReplicaLoad]:
    """Return those of ``replicas``, which are in the order of their numbers, that have one of ``numbers``."""
    if len(numbers) * BISECTED > len(replicas):
        return [load for load in replicas if load.replica in numbers]
    loads = []
    for number in numbers:
        place = bisect_left(replicas, number, key=_number)
        if place < len(replicas) and replicas[place].replica == number:
            loads.append(replicas[place])
    return loads
