"""Eviction policies: the order in which unused prefixes are evicted."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug import EvictionSpec, hookimpl

POLICIES = "sglang_plug_backends.eviction.policies"


@hookimpl
def register_cache_policies() -> Iterator[EvictionSpec]:
    yield EvictionSpec(
        name="lru", target=f"{POLICIES}:LeastRecentlyUsed", summary="evicts the least recently used prefix first"
    )
    yield EvictionSpec(
        name="lfu", target=f"{POLICIES}:LeastFrequentlyUsed", summary="evicts the least frequently used prefix first"
    )
    yield EvictionSpec(name="fifo", target=f"{POLICIES}:FirstInFirstOut", summary="evicts the oldest prefix first")
    yield EvictionSpec(
        name="priority",
        target=f"{POLICIES}:LowestPriority",
        summary="evicts prefixes of the lowest request priority first",
    )


@hookimpl(trylast=True)
def choose_component(kind: str) -> str | None:
    return "lru" if kind == "eviction" else None
