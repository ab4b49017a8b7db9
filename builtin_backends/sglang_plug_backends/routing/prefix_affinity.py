"""Requests with one prefix go to one replica, so that it is computed and cached once.

The policy remembers digests of prefixes of the prompts that it routed, and the replicas that have them. It remembers as
many tokens of a replica as fit into the replica's KV pool, the least recently used are dropped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from operator import attrgetter

from sglang_plug import ReplicaLoad, Request, prefix_digests

from .least_loaded import MAX_COMPARED, LeastLoaded

UNKNOWN_CAPACITY = 1 << 16
"""KV slots of a replica that has not reported a step yet."""
PRECISION = 8
"""A prefix is known to an eighth of its length: up to 16 blocks each one has a digest, up to 32 every second one."""

_number: Callable[[ReplicaLoad], int] = attrgetter("replica")


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinitySettings:
    """Settings given as ``--set prefix-affinity.KEY=VALUE``."""

    block: int = 64
    """Tokens of a block: prefixes of up to 16 blocks count in blocks, longer ones in multiples."""
    max_blocks: int = 1024
    """Leading blocks of a prompt that are looked at."""
    slack_tokens: int = 2048
    """Tokens that a replica with the prefix may have more in flight than the least loaded one."""
    slack_ratio: float = 1.5
    """Ratio of tokens in flight that it may have on top of ``slack_tokens``."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a value that is out of bounds."""
        for name, minimum in (("block", 1), ("max_blocks", 1), ("slack_tokens", 0), ("slack_ratio", 1)):
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {minimum}")


class PrefixAffinity:
    """The replica that computed the longest prefix of the prompt, unless it is overloaded.

    A prompt that no replica knows goes to the replica with the fewest tokens in flight, and of several to the one that
    was given the fewest tokens to cache, so that an idle server spreads its prefixes over all caches.
    """

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._least_loaded = LeastLoaded()
        self._lengths = tuple(prefix_lengths(settings.block, settings.max_blocks))
        self._added = tuple(length - shorter for shorter, length in pairwise((0, *self._lengths)))
        """Tokens by which each of the lengths exceeds the one before."""
        self._holders: dict[int, dict[int, None]] = {}
        """Digest of a prefix -> replicas that have computed it, the least recently chosen first."""
        self._caches: dict[int, _Cache] = {}

    def choose(self, request: Request, replicas: Sequence[ReplicaLoad]) -> int:
        """Return the replica, and remember that it computes the prompt now."""
        settings = self._settings
        digests = list(prefix_digests(request, self._lengths))
        idle = self._least_loaded.candidates(replicas)
        least_loaded = idle[0] if len(idle) == 1 else min(idle, key=self._cached_tokens)
        limit = least_loaded.tokens * settings.slack_ratio + settings.slack_tokens
        holders = [load for load in self._longest(digests, replicas) if load.tokens <= limit]
        chosen = min(holders, key=self._order) if holders else least_loaded
        self._remember(chosen, digests)
        return chosen.replica

    def forget(self, replica: int) -> None:
        """Drop what is known about a replica whose cache is empty."""
        if (cache := self._caches.pop(replica, None)) is not None:
            for digest in cache.prefixes:
                self._drop(replica, digest)

    def _cached_tokens(self, load: ReplicaLoad) -> int:
        cache = self._caches.get(load.replica)
        return 0 if cache is None else cache.tokens

    def _order(self, load: ReplicaLoad) -> tuple[int, int, int]:
        return load.tokens, self._cached_tokens(load), load.replica

    def _longest(self, digests: Sequence[int], replicas: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
        """Return those of ``replicas`` that have the longest prefix that one of them has; of many the first 64.

        Whoever has a prefix has all shorter ones, so the longest known one is found by bisection.
        """
        holders = self._holders
        known = bisect_left(digests, True, key=lambda digest: digest not in holders)
        for digest in reversed(digests[:known]):
            if loads := _of_numbers(replicas, islice(holders[digest], MAX_COMPARED)):
                return loads
        return []

    def _remember(self, load: ReplicaLoad, digests: Sequence[int]) -> None:
        replica, holders = load.replica, self._holders
        cache = self._caches.setdefault(replica, _Cache())
        prefixes = cache.prefixes
        for digest, tokens in zip(reversed(digests), reversed(self._added[: len(digests)]), strict=True):
            if digest in prefixes:
                prefixes.move_to_end(digest)
                if len(numbers := holders[digest]) > 1:  # to the end of those that were chosen
                    del numbers[replica]
                    numbers[replica] = None
                continue
            prefixes[digest] = tokens
            cache.tokens += tokens
            if (known := holders.get(digest)) is None:
                holders[digest] = {replica: None}
            else:
                known[replica] = None
        capacity = UNKNOWN_CAPACITY if load.latest is None else load.latest.capacity
        limit = max(capacity, self._lengths[len(digests) - 1] if digests else 0)
        while cache.tokens > limit:
            oldest, tokens = prefixes.popitem(last=False)
            cache.tokens -= tokens
            self._drop(replica, oldest)

    def _drop(self, replica: int, digest: int) -> None:
        holders = self._holders[digest]
        holders.pop(replica, None)
        if not holders:
            del self._holders[digest]


def prefix_lengths(block: int, max_blocks: int) -> Iterable[int]:
    """Yield the numbers of tokens of the prefixes that are kept, up to ``max_blocks`` blocks.

    Their distance is one block at first and doubles with their length, so that a long prompt has few of them.
    """
    count, distance = 1, 1
    while count <= max_blocks:
        yield count * block
        if count == PRECISION * 2 * distance:
            distance *= 2
        count += distance


@dataclass(slots=True)
class _Cache:
    """Prefixes that a replica is believed to have cached."""

    prefixes: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """Digest of a prefix -> tokens by which it is longer than the next shorter one, the least recently used first. Of
    one prompt the longest prefix comes first, so that a replica that has a prefix has all shorter ones."""
    tokens: int = 0
    """Sum of ``prefixes``."""


def _of_numbers(replicas: Sequence[ReplicaLoad], numbers: Iterable[int]) -> list[ReplicaLoad]:
    """Return those of ``replicas``, which are in the order of their numbers, that have one of ``numbers``."""
    loads, count = [], len(replicas)
    for number in numbers:
        index = number  # where it is if all replicas serve
        if index >= count or replicas[index].replica != number:
            index = bisect_left(replicas, number, key=_number)
        if index < count and replicas[index].replica == number:
            loads.append(replicas[index])
    return loads
