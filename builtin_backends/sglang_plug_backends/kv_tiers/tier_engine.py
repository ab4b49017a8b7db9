"""The parts of the tiers of one KV pool: stores, queues and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from sglang_plug import KVBlockPart, KVStore, KVTransfer, MetricCounter, PrefixPool, StepStats
from sglang_plug_backends.kv_tiers.storage.rates import PrefillRate
from sglang_plug_backends.kv_tiers.storage.tier import Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers
from sglang_plug_backends.kv_tiers.storage.transfers import Transfers

from .block_layout import BlockLayout
from .loading.prefix_loads import PrefixLoads
from .loading.prefix_source import PrefixSource
from .loading.step_quota import StepQuota
from .loading.tensor_loads import TensorLoads
from .prefix_stores import PrefixStores
from .settings import KVTiersSettings
from .state_layout import StateLayout

CLOSE_SECONDS = 5.0
"""Seconds for which the end of the server waits for blocks that are not stored yet."""
LOAD_CLOSE_SECONDS = 1.0
"""Seconds for which it waits for prefixes that are being loaded, and for tensors."""


@dataclass(frozen=True, slots=True)
class TierEngine:
    """Tiers, and the threads that load from and store to them."""

    layout: BlockLayout
    states: StateLayout
    tiers: Tiers
    prefill: PrefillRate
    stores: PrefixStores
    loads: PrefixLoads
    tensors: TensorLoads
    transfers: Transfers | None
    """``None``: no store can transfer."""
    quota: StepQuota | None
    """``None``: steps and loads do not compete for processors."""
    step_bytes: int
    """Maximum number of bytes that are copied into the pool in a step for which other sequences wait."""

    @classmethod
    def open(
        cls, prefixes: PrefixPool, stores: dict[str, KVStore], settings: KVTiersSettings, device: torch.device
    ) -> TierEngine:
        """Start the threads for ``stores``, by name and the fastest first, and a pool on ``device``."""
        page = prefixes.page_size
        layout = BlockLayout.of(prefixes.kv, -(-settings.block_tokens // page) * page)
        states = StateLayout.of(prefixes.stored_states, layout.tokens)
        tiers = Tiers([Tier(name, store) for name, store in stores.items()])
        prefill, max_bytes = PrefillRate(), settings.buffer_mib << 20
        queue = PrefixStores(tiers, max_bytes)
        seconds, always = settings.load_seconds, settings.load == "always"
        quota = StepQuota() if device.type == "cpu" else None
        loads = PrefixLoads(
            PrefixSource(tiers, layout, states, device, quota),
            prefill,
            max_bytes=max_bytes,
            max_seconds=seconds,
            always=always,
            promote=queue.promote,
        )
        tensors = TensorLoads(tiers, device, prefill, max_seconds=seconds, always=always, promote=queue.promote)
        return cls(
            layout=layout,
            states=states,
            tiers=tiers,
            prefill=prefill,
            stores=queue,
            loads=loads,
            tensors=tensors,
            transfers=Transfers.of(stores, seconds),
            quota=quota,
            step_bytes=settings.step_mib << 20,
        )

    def step_done(self, stats: StepStats) -> None:
        """Note what the step computed, and how long it took."""
        self.prefill.observe(stats)
        if self.quota is not None:
            self.quota.step_done(stats.decode_sequences > 0)

    def info(self) -> dict[str, Any]:
        """Return plain data for ``/server_info``."""
        rate = self.prefill.seconds_per_token
        return {
            "tiers": self.tiers.info(),
            "block_tokens": self.layout.tokens,
            "block_bytes": self.layout.bytes,
            "state_bytes": self.states.size,
            "queued_blocks": self.stores.queued_blocks,
            "dropped_blocks": self.stores.dropped_blocks,
            "prefill_seconds_per_token": rate,
            "transfers": None if self.transfers is None else self.transfers.info(),
        }

    def counters(self) -> Iterator[MetricCounter]:
        """Yield what was loaded, stored and transferred, as metrics."""
        yield from self.tiers.counters()
        if self.transfers is not None:
            yield from self.transfers.counters()

    def send(self, keys: Sequence[bytes], transfer: KVTransfer) -> None:
        """Send blocks of a prompt to another engine, after they are stored."""
        if self.transfers is not None:
            self.stores.then(partial(self.transfers.send, keys, transfer.address))

    def send_parts(self, parts: Callable[[], Sequence[KVBlockPart]], size: int, address: str) -> None:
        """Send the parts of blocks that a function makes of ``size`` bytes, if the queue has room for them."""
        if self.transfers is not None:
            self.stores.then(partial(self.transfers.send_parts, parts, address), size)

    def complete(self, transfer: KVTransfer) -> bool:
        """Tell the other engine that all blocks were sent, after they are; return False if they probably cannot be."""
        if self.transfers is None or not self.transfers.reaches(transfer.address):
            return False
        self.stores.then(partial(self.transfers.send, (), transfer.address, transfer.id), needed=True)
        return True

    def close(self) -> None:
        """End the threads, and close the stores."""
        self.loads.close(LOAD_CLOSE_SECONDS)
        self.tensors.close(LOAD_CLOSE_SECONDS)
        self.stores.close(CLOSE_SECONDS)
        self.tiers.close()


OpenStores = Callable[[PrefixPool], TierEngine]
