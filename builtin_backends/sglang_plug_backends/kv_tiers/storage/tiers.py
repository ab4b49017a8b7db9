"""All tiers of an engine, the fastest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

from sglang_plug import KVBlock, MetricCounter

from .tier import Tier

METRICS = {
    "loaded_blocks": "Blocks of prompts that were loaded from the store instead of being computed",
    "loaded_bytes": "Bytes of these blocks",
    "load_seconds": "Seconds that loading took",
    "stored_blocks": "Blocks that were stored",
    "stored_bytes": "Bytes of these blocks",
    "store_seconds": "Seconds that storing took",
    "failed_blocks": "Blocks that the store should have had and that could not be loaded",
    "errors": "Calls of the store that failed",
}
"""Count of a tier -> description of its metric."""


@dataclass(frozen=True, slots=True)
class LoadedBlock:
    """A block, and the tier that it came from."""

    data: memoryview
    tier: str


class Tiers:
    """Looks for blocks in each tier in turn, and stores blocks in all of them.

    Args:
        tiers: the fastest first.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self._tiers = tuple(tiers)

    @property
    def fastest(self) -> str:
        """Name of the first tier."""
        return self._tiers[0].name

    @property
    def lookup_is_immediate(self) -> bool:
        """True if ``locate`` waits for nothing."""
        return all(tier.index_in_memory for tier in self._tiers)

    def find(self, keys: Sequence[bytes]) -> list[Tier | None]:
        """Return the fastest tier that has each block; ``None`` if none has it."""
        tiers: list[Tier | None] = [None] * len(keys)
        for tier in self._tiers:
            missing = [number for number, tier in enumerate(tiers) if tier is None]
            if not missing:
                break
            for number, present in zip(missing, tier.lookup([keys[number] for number in missing]), strict=True):
                if present:
                    tiers[number] = tier
        return tiers

    def locate(self, keys: Sequence[bytes]) -> list[Tier]:
        """Return the tier of each of the first blocks, up to the first that no tier has."""
        return [tier for tier in takewhile(lambda tier: tier is not None, self.find(keys)) if tier is not None]

    def min_seconds(self, size: int) -> float:
        """Return how long it takes at least to look for blocks of ``size`` bytes together, and to load them."""
        lookups = sum(tier.lookup_seconds for tier in self._tiers if not tier.index_in_memory)
        return lookups + min(tier.load_seconds(size) for tier in self._tiers)

    def begin_trial(self, tiers: Collection[Tier] | None) -> bool:
        """Report whether it is time to measure the rate of one of these tiers again; of any, if they are not known."""
        return any([tier.begin_trial() for tier in set(self._tiers if tiers is None else tiers)])

    def load(
        self, keys: Sequence[bytes], tiers: Sequence[Tier], deadline: float, size: int | None
    ) -> list[LoadedBlock]:
        """Return the first blocks with ``keys``, of ``size`` bytes, up to the first that ``tiers`` cannot load."""
        blocks: list[LoadedBlock] = []
        for tier, run in groupby(zip(keys, tiers, strict=True), key=lambda pair: pair[1]):
            run_keys = [key for key, _ in run]
            for data in tier.load(run_keys, deadline, size):
                if data is None:
                    return blocks
                blocks.append(LoadedBlock(data, tier.name))
        return blocks

    def missing(self, keys: Sequence[bytes]) -> list[bool]:
        """Report without waiting for each key whether some tier probably lacks its block; counts as a use of it."""
        missing = [False] * len(keys)
        for tier in self._tiers:
            missing = [before or now for before, now in zip(missing, tier.lacks(keys), strict=True)]
        return missing

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Store ``blocks`` in every tier that does not have them."""
        keys = [block.key for block in blocks]
        for tier in self._tiers:
            absent = [block for block, present in zip(blocks, tier.lookup(keys), strict=True) if not present]
            if absent:
                tier.store(absent)

    def clear(self) -> None:
        """Empty every tier. Raises the first error, after all were tried."""
        errors = list[Exception]()
        for tier in self._tiers:
            try:
                tier.clear()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def info(self) -> dict[str, Any]:
        """Return contents and counts by tier."""
        return {tier.name: tier.info() for tier in self._tiers}

    def counters(self) -> Iterator[MetricCounter]:
        """Yield the counts of each tier, as metrics."""
        for tier in self._tiers:
            for name, description in METRICS.items():
                value = float(getattr(tier.counts, name))
                yield MetricCounter(f"kv_store_{name}_total", description, (("store", tier.name),), value)

    def close(self) -> None:
        """Close every store."""
        for tier in self._tiers:
            tier.close()
