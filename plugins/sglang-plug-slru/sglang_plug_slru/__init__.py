"""Segmented LRU: a cached prefix that was used again outlives every prefix that was used only once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_plug import EvictionSpec, NodeStats, hookimpl

api_version = 1


@hookimpl
def register_cache_policies() -> Iterator[EvictionSpec]:
    yield EvictionSpec(
        name="slru",
        target=f"{__name__}:SegmentedLRU",
        settings=f"{__name__}:Settings",
        summary="least recently used, prefixes that were used only once first",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings given as ``--set slru.protected_hits=N``."""

    protected_hits: int = 2
    """Number of uses after which a prefix moves from the probationary to the protected segment."""

    def __post_init__(self) -> None:
        if self.protected_hits < 1:
            raise ValueError(f"protected_hits is {self.protected_hits}, but must be at least 1")


class SegmentedLRU:
    """Two segments, each in order of last use; the probationary one is emptied first."""

    def __init__(self, settings: Settings) -> None:
        self.protected_hits = settings.protected_hits

    def eviction_priority(self, node: NodeStats) -> tuple[bool, float]:
        """Return the priority; lowest is evicted first: probationary before protected, then the longest unused."""
        return node.hits >= self.protected_hits, node.used
