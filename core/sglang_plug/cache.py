"""Contracts of the prefix cache and of eviction.

Who owns a KV slot: the free list, the prefix cache, or one sequence. A sequence that matched a prefix borrows
the cache's slots, which stay the cache's and are locked for as long as the sequence runs.
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
    """Length of the run."""
    depth: int
    """Tokens from the root to the end of this run."""
    created: float
    """Seconds on the cache's clock, as ``used``."""
    used: float
    hits: int
    priority: int
    """Highest priority of the requests that used it."""


class EvictionPolicy(Protocol):
    """A sort key: the leaf ranked lowest, among those nobody uses, goes first."""

    def rank(self, node: NodeStats) -> Any:
        """A sortable key."""


@dataclass(frozen=True, slots=True)
class Match:
    """A receipt for a cached prefix. Opaque but for ``slots``: hand it back to ``lock`` and ``unlock``."""

    slots: Sequence[int]
    """KV slots of the matched tokens, whole pages."""
    node: Any
    """Where the prefix ends, for the cache that made the receipt; hashable, and equal ends compare equal.
    ``None`` from a cache that remembers nothing."""


class PrefixCache(ABC):
    """Remembers which token prefixes have their keys and values in the pool.

    Args:
        page_size: prefixes are shared in whole pages of this many tokens.
        policy: which unused runs go first.
        clock: seconds; injected so that tests can set it.
    """

    def __init__(self, page_size: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        self.page_size, self.policy, self.clock = page_size, policy, clock

    @abstractmethod
    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """The longest cached prefix of ``tokens``, whole pages; counts as a use. Does not lock."""

    @abstractmethod
    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        """Remember that ``tokens`` (whole pages) lie in ``slots``; returns the cached path.

        The cache takes ownership of the slots of the part it did not have. For the part it had already,
        ``Match.slots`` differs from ``slots``, and the caller keeps (and frees) its own duplicates.
        """

    @abstractmethod
    def lock(self, match: Match) -> None:
        """Keep the prefix from being evicted until ``unlock``; locks are counted."""

    @abstractmethod
    def unlock(self, match: Match) -> None:
        """Give one lock back."""

    @abstractmethod
    def evict(self, wanted: int) -> list[int]:
        """Forget unused runs until at least ``wanted`` slots are free, or none is left; returns their slots."""

    @abstractmethod
    def reset(self) -> list[int]:
        """Forget everything; returns the slots. Raises ``RuntimeError`` if anything is locked."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Slots the cache owns."""

    @property
    @abstractmethod
    def evictable(self) -> int:
        """Slots the cache owns that nobody has locked."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``AssertionError`` if the structure contradicts itself; called when the engine is idle."""
