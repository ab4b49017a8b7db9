"""Eviction policies: one sort key each; the lowest goes first."""

from __future__ import annotations

from sglang_plug import NodeStats


class LeastRecentlyUsed:
    """By the time of the last use."""

    def rank(self, node: NodeStats) -> float:
        return node.used


class LeastFrequentlyUsed:
    """By the number of uses, then by the time of the last one."""

    def rank(self, node: NodeStats) -> tuple[int, float]:
        return node.hits, node.used


class FirstInFirstOut:
    """By age."""

    def rank(self, node: NodeStats) -> float:
        return node.created


class LowestPriority:
    """By the highest priority among the requests that used it, then by the time of the last use."""

    def rank(self, node: NodeStats) -> tuple[int, float]:
        return node.priority, node.used
