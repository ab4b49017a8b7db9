"""Loads prefixes in the background, if that is faster than computing them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sglang_plug import KVBlock

from .block_layout import BlockLayout
from .rates import PrefillRate
from .tiers import Tiers

logger = logging.getLogger(__name__)

WORKERS = 2
GRACE = 1.0
"""Seconds after its deadline for which a load is waited for: a store may be late by one block."""


@dataclass(slots=True, eq=False)
class PrefixLoad:
    """Blocks of one sequence that are being loaded, or were."""

    keys: Sequence[bytes]
    first: int
    """Index of the first block in the sequence."""
    seconds: float
    """Seconds after which loading is of no use any more."""
    compute_seconds: float | None
    """Estimated seconds to compute the blocks; ``None``: not known."""
    began: float | None = None
    """``time.monotonic()`` when a worker began with it."""
    done: bool = False
    """True once ``rows`` and ``tiers`` are final."""
    released: bool = False
    """True once nobody needs the result."""
    rows: list[Tensor] = field(default_factory=list)
    """See ``BlockLayout.rows``."""
    tiers: list[str] = field(default_factory=list)
    """The tier of each block that was loaded; they are the first ones."""

    @property
    def is_late(self) -> bool:
        """True if a worker should have finished it by now."""
        return self.began is not None and time.monotonic() > self.began + self.seconds + GRACE


class PrefixLoads:
    """The queue of loads, and the threads that load.

    Args:
        tiers: where blocks are loaded from.
        layout: the layout of blocks.
        device: the device of the KV pool.
        prefill: how long prompts take.
        most_bytes: most bytes of loaded blocks that are not in the pool yet; further loads wait.
        promote: receives the blocks that came from another tier than the fastest.
        most_seconds: most seconds for one load.
        always: load whatever computing would take.
    """

    def __init__(
        self,
        tiers: Tiers,
        layout: BlockLayout,
        device: torch.device,
        prefill: PrefillRate,
        *,
        most_bytes: int,
        most_seconds: float,
        always: bool,
        promote: Callable[[list[KVBlock]], None],
    ) -> None:
        self._tiers, self._layout, self._device, self._prefill = tiers, layout, device, prefill
        self._most_blocks = max(1, most_bytes // layout.bytes)
        self._most_seconds, self._always, self._promote = most_seconds, always, promote
        self._queue: deque[PrefixLoad] = deque()
        self._changed = threading.Condition()
        self._held_blocks = 0
        self._active = set[PrefixLoad]()
        self._closed = False
        for number in range(WORKERS):
            threading.Thread(target=self._run, name=f"kv-loads-{number}", daemon=True).start()

    @property
    def usable(self) -> bool:
        """False while all workers are stuck in a store that ignores deadlines."""
        with self._changed:
            return sum(load.is_late for load in self._active) < WORKERS

    def submit(self, keys: Sequence[bytes], first: int) -> PrefixLoad:
        """Begin to load the blocks with ``keys``, of which the first is block ``first`` of its sequence."""
        compute = None if self._always else self._prefill.seconds(len(keys) * self._layout.tokens)
        seconds = self._most_seconds if compute is None else min(compute, self._most_seconds)
        load = PrefixLoad(keys, first, seconds, compute)
        with self._changed:
            self._queue.append(load)
            self._changed.notify()
        return load

    def release(self, load: PrefixLoad) -> None:
        """Forget a load, whose blocks are in the pool or are not needed."""
        with self._changed:
            if load.released:
                return
            load.released = True
            if load.done:
                self._held_blocks -= len(load.tiers)
                load.rows, load.tiers = [], []
            elif load in self._queue:
                self._queue.remove(load)
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads, which finish what they are at."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._has_room():
                    self._changed.wait()
                if self._closed:
                    return
                load = self._queue.popleft()
                load.began = time.monotonic()
                self._active.add(load)
            rows, tiers = list[Tensor](), list[str]()
            try:
                rows, tiers = self._load(load)
            except Exception:
                logger.exception("A prefix could not be loaded")
            with self._changed:
                self._active.remove(load)
                if not load.released:
                    self._held_blocks += len(tiers)
                    load.rows, load.tiers = rows, tiers
                    load.done = True

    def _has_room(self) -> bool:
        """Report whether the first load in the queue may begin; one may always, however large it is."""
        if not self._queue:
            return False
        return self._held_blocks == 0 or self._held_blocks + len(self._queue[0].keys) <= self._most_blocks

    def _load(self, load: PrefixLoad) -> tuple[list[Tensor], list[str]]:
        assert load.began is not None
        places = self._tiers.locate(load.keys)
        estimate = sum(tier.rate.seconds(self._layout.bytes) for tier in places)
        if not places or (load.compute_seconds is not None and estimate >= load.compute_seconds):
            return [], []  # computing is faster
        keys = load.keys[: len(places)]
        blocks = self._tiers.load(keys, places, load.began + load.seconds)
        if not blocks:
            return [], []
        fastest = self._tiers.fastest
        lower = [KVBlock(key, block.data) for key, block in zip(keys, blocks, strict=False) if block.tier != fastest]
        if lower:
            self._promote(lower)
        return self._layout.rows([block.data for block in blocks], self._device), [block.tier for block in blocks]
