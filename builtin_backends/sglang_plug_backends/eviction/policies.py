"""Eviction policies: one sort key each; the lowest is evicted first."""

from __future__ import annotations

from sglang_plug import NodeStats


class LeastRecentlyUsed:
    """Evict by the time of the last use."""

    def eviction_priority(self, node: NodeStats) -> float:
        return node.used


class LeastFrequentlyUsed:
    """Evict by the number of uses, then by the time of the last use."""

    def eviction_priority(self, node: NodeStats) -> tuple[int, float]:
        return node.hits, node.used


class FirstInFirstOut:
    """Evict the oldest first."""

    def eviction_priority(self, node: NodeStats) -> float:
        return node.created


class LowestPriority:
    """Evict by the highest priority among the requests that used the prefix, then by the time of the last use."""

    def eviction_priority(self, node: NodeStats) -> tuple[int, float]:
        return node.priority, node.used
