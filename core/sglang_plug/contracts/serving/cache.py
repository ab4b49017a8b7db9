"""The contracts of the prefix cache and of eviction policies.

A KV slot is owned by the free list, the prefix cache, or one sequence. A sequence that matches a prefix borrows slots
of the cache; the cache still owns them, and they are locked while the sequence runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class NodeStats:
    """A cached run of tokens, as an eviction policy sees it."""

    tokens: int
    """Number of tokens in the run."""
    depth: int
    """Number of tokens from the root to the end of the run."""
    created: float
    """Time of creation in seconds on the cache's clock; ``used``, the last use, is on the same clock."""
    used: float
    hits: int
    """Number of requests that were admitted with it."""
    priority: int
    """Highest priority of the requests that used it."""


class EvictionPolicy(Protocol):
    """A sort key for eviction: of the unused leaves, the one with the lowest key is evicted first."""

    def eviction_priority(self, node: NodeStats) -> Any:
        """Return a sortable key for a leaf."""


@dataclass(frozen=True, slots=True)
class Match:
    """A handle for a cached prefix. Opaque except for ``slots``: pass it to ``lock`` and ``unlock``."""

    slots: Sequence[int]
    """KV slots of the matched tokens, whole pages."""
    node: Any
    """The end of the prefix, for the cache that made the handle; hashable, and equal for equal ends. ``None`` from a
    cache that stores nothing."""


@dataclass(frozen=True, slots=True)
class CachedSegment:
    """A cached run of tokens as an operator sees it: how many, how used, not which."""

    parent: int | None
    """Index in the outline of the run that it continues, before its own; ``None`` for the beginning of prompts."""
    tokens: int
    hits: int
    idle: float
    """Seconds since the last use."""
    locked: bool
    """True while a running sequence uses it."""
    children: int
    """Number of runs that continue it, those included that the outline leaves out."""


class PrefixCache(ABC):
    """Maps token prefixes to the slots that hold their keys and values.

    Args:
        page_size: prefixes are shared in whole pages of this many tokens.
        policy: decides which unused runs are evicted first.
        clock: returns seconds; a parameter so that tests can control it.
    """

    def __init__(self, page_size: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        self.page_size, self.policy, self.clock = page_size, policy, clock

    @abstractmethod
    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """Return the longest cached prefix of ``tokens``, in whole pages; counts as a use and a hit. Does not lock."""

    def find(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """Return what ``match`` returns, for a request that waits: counts as a use, but not as a hit.

        A waiting request is looked up in every step, and matched once it is admitted. By default, ``match``.
        """
        return self.match(tokens, salt, priority)

    @abstractmethod
    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """Store that ``slots`` hold ``tokens`` (whole pages), and return the cached path.

        The cache takes ownership of the slots of tokens that it did not have. For tokens that it had already,
        ``Match.slots`` differs from ``slots``, and the caller keeps (and frees) its own duplicates.
        """

    @abstractmethod
    def lock(self, match: Match) -> None:
        """Keep the prefix from being evicted until ``unlock``; locks are counted."""

    @abstractmethod
    def unlock(self, match: Match) -> None:
        """Release one lock."""

    @abstractmethod
    def evict(self, count: int) -> list[int]:
        """Evict unused runs until at least ``count`` slots are free, or none is left; return their slots."""

    @abstractmethod
    def reset(self) -> list[int]:
        """Evict everything and return the slots. Raises ``RuntimeError`` if anything is locked."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of slots that the cache owns."""

    @property
    @abstractmethod
    def evictable(self) -> int:
        """Number of slots that the cache owns and no sequence has locked."""

    def outline(self, max_runs: int) -> Sequence[CachedSegment]:
        """Return at most ``max_runs`` cached runs for the operator's view, each after the run that it continues.

        Called between two steps, now and then: look at a number of runs in proportion to ``max_runs``, however many are
        cached. A cache that does not implement it shows nothing.
        """
        return ()

    @abstractmethod
    def check(self) -> None:
        """Raise ``AssertionError`` if the structure is inconsistent; called when the engine is idle."""
