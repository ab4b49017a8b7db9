"""Finds a prefix in the tiers and loads it: its blocks, and the states that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sglang_plug import KVBlock
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout
from sglang_plug_backends.kv_tiers.state_layout import StateLayout
from sglang_plug_backends.kv_tiers.storage.tier import Tier
from sglang_plug_backends.kv_tiers.storage.tiers import LoadedBlock, Tiers

from .step_quota import StepQuota


@dataclass(frozen=True, slots=True)
class MissingPrefix:
    """The part of a prefix that a sequence cannot use from the pool."""

    keys: Sequence[bytes]
    """Keys of its blocks, from block ``first`` on."""
    first: int
    """Index of the first block that is not in the pool."""
    states: Sequence[tuple[int, bytes]] = ()
    """Keys of the states to continue from, each with the number of blocks before it, ascending; empty if no states are
    needed."""
    usable: int | None = None
    """Number of blocks that the sequence could use now, fewer than ``first`` if a state is missing; ``None``: equal."""

    @property
    def start(self) -> int:
        """Number of blocks that need not be computed, whatever is loaded."""
        return self.first if self.usable is None else self.usable

    @property
    def max_gain(self) -> int:
        """Number of blocks that need not be computed if all of it is loaded."""
        return (self.states[-1][0] if self.states else self.first + len(self.keys)) - self.start


@dataclass(frozen=True, slots=True)
class LocatedPrefix:
    """The tiers that have a missing prefix."""

    missing: MissingPrefix
    tiers: Sequence[Tier]
    """The tier of each block that has to be loaded."""
    end: int
    """Number of blocks that the sequence can use once they are loaded."""
    states: Sequence[tuple[int, bytes, Tier]] = ()
    """The states that the tiers have, the deepest first; the first one is after ``end`` blocks."""

    @property
    def gain(self) -> int:
        """Number of blocks that need not be computed once this is loaded."""
        return self.end - self.missing.start


@dataclass(frozen=True, slots=True)
class LoadedPrefix:
    """Blocks in the host's memory, and the state after them."""

    end: int = 0
    """Number of blocks that the sequence can use once these are in the pool."""
    rows: Sequence[Tensor] = ()
    """See ``BlockLayout.rows``."""
    tiers: Sequence[str] = ()
    """The tier of each block."""
    state: Sequence[Tensor] = ()
    """See ``StateLayout.decode``."""
    state_tier: str = ""
    bytes: int = 0
    lower: Sequence[KVBlock] = ()
    """Blocks that came from another tier than the fastest."""


NOTHING = LoadedPrefix()


class PrefixSource:
    """Looks for missing prefixes in tiers, and loads them.

    Args:
        tiers: where blocks and states are stored.
        layout: the layout of blocks.
        states: the layout of the states that a prefix needs.
        device: where blocks and states are sent afterwards.
        quota: limits what is loaded during a step.
    """

    def __init__(
        self,
        tiers: Tiers,
        layout: BlockLayout,
        states: StateLayout,
        device: torch.device,
        quota: StepQuota | None = None,
    ) -> None:
        self.tiers, self.layout = tiers, layout
        self._states, self._device, self._quota = states, device, quota

    def locate(self, missing: MissingPrefix) -> LocatedPrefix | None:
        """Return where the longest usable part of a missing prefix is; ``None`` if no tier has one."""
        tiers = self.tiers.locate(missing.keys)
        end = missing.first + len(tiers)
        if not missing.states:
            return LocatedPrefix(missing, tiers, end) if tiers else None
        if not self.layout.bytes:
            end = missing.states[-1][0]  # there are no blocks to load
        reachable = [state for state in missing.states if state[0] <= end]
        located = zip(reachable, self.tiers.find([key for _, key in reachable]), strict=True)
        states = [(number, key, tier) for (number, key), tier in located if tier is not None][::-1]
        if not states:
            return None
        end = states[0][0]
        return LocatedPrefix(missing, tiers[: max(0, end - missing.first)], end, states)

    def size(self, located: LocatedPrefix) -> int:
        """Return the bytes of a prefix."""
        return len(located.tiers) * self.layout.bytes + (self._states.size if located.states else 0)

    def max_bytes(self, missing: MissingPrefix) -> int:
        """Return the bytes of a prefix, if the tiers had all of it."""
        return len(missing.keys) * self.layout.bytes + (self._states.size if missing.states else 0)

    def seconds(self, located: LocatedPrefix) -> float:
        """Return how long loading a prefix probably takes."""
        seconds = sum(tier.load_seconds(self.layout.bytes) for tier in located.tiers)
        return seconds + sum(tier.load_seconds(self._states.size) for _, _, tier in located.states[:1])

    def min_seconds(self, missing: MissingPrefix) -> float:
        """Return how long looking for a prefix and loading it takes at least."""
        return self.tiers.min_seconds(self.max_bytes(missing))

    def tiers_of(self, located: LocatedPrefix) -> set[Tier]:
        """Return the tiers that a prefix is loaded from."""
        return {*located.tiers, *(tier for _, _, tier in located.states[:1])}

    def load(self, located: LocatedPrefix, deadline: float) -> LoadedPrefix:
        """Load what arrives before ``deadline``; empty if that is of no use."""
        missing, size = located.missing, self.layout.bytes
        reserved = sum(tier.load_seconds(self._states.size) for _, _, tier in located.states[:1])
        keys = missing.keys[: len(located.tiers)]
        blocks = self._load_blocks(keys, located.tiers, deadline - reserved)
        loaded = LoadedPrefix(missing.first + len(blocks) if size else located.end)
        if located.states:
            loaded = self._load_states(located, loaded.end, deadline)
            blocks = blocks[: max(0, loaded.end - missing.first)]
        lower = (KVBlock(key, block.data) for key, block in zip(keys, blocks, strict=False) if self._is_lower(block))
        return replace(
            loaded,
            rows=self.layout.rows([block.data for block in blocks], self._device) if blocks else (),
            tiers=[block.tier for block in blocks],
            bytes=loaded.bytes + len(blocks) * size,
            lower=[*lower, *loaded.lower],
        )

    def _load_blocks(self, keys: Sequence[bytes], tiers: Sequence[Tier], deadline: float) -> list[LoadedBlock]:
        """Load the first blocks that ``tiers`` can load before ``deadline``, a part of them during each step."""
        size, quota = self.layout.bytes, self._quota
        if quota is None or not keys:
            return self.tiers.load(keys, tiers, deadline, size)
        blocks, batch = list[LoadedBlock](), max(1, quota.max_bytes // size)
        for start in range(0, len(keys), batch):
            part = keys[start : start + batch]
            quota.take(len(part) * size)
            blocks += self.tiers.load(part, tiers[start : start + batch], deadline, size)
            if len(blocks) < start + len(part):
                break
        return blocks

    def _load_states(self, located: LocatedPrefix, max_blocks: int, deadline: float) -> LoadedPrefix:
        """Load the states after ``max_blocks`` blocks, or those after fewer ones if they cannot be loaded."""
        for number, key, tier in located.states:
            if number <= max_blocks and (block := self.tiers.load([key], [tier], deadline, self._states.size)):
                data = block[0].data
                lower = [KVBlock(key, data)] if self._is_lower(block[0]) else []
                tensors = self._states.decode(data, self._device)
                return LoadedPrefix(number, state=tensors, state_tier=tier.name, bytes=data.nbytes, lower=lower)
        return NOTHING

    def _is_lower(self, block: LoadedBlock) -> bool:
        return block.tier != self.tiers.fastest
