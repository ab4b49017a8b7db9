"""The step extension of KV tiers for engines with a store that sends blocks to other engines."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from sglang_plug import ChunkView, ForwardBatch, ForwardPhase, InputPhase, Kernels, Model, PrefixPool

from .extension import KVTiers
from .layer_transfers import BlocksToSend, LayerTransfers, call_after_attention
from .tier_engine import OpenStores


class SendingKVTiers(KVTiers, InputPhase, ForwardPhase):
    """KV tiers that send the blocks of a prompt layer by layer, while the step that completes them is computed."""

    def __init__(self, open_stores: OpenStores, names: str, memory: int) -> None:
        super().__init__(open_stores, names, memory)
        self._transfers: LayerTransfers | None = None
        self._wrapped_layers = ExitStack()

    def use_prefixes(self, prefixes: PrefixPool) -> None:
        """Open the stores."""
        super().use_prefixes(prefixes)
        if self._tiers is not None and self._tiers.engine.layout.bytes:
            self._transfers = LayerTransfers(self._tiers.engine, prefixes.kv)

    def install(self, model: Model, kernels: Kernels) -> None:
        """Compute the digest of the weights, and follow the layers of the model."""
        super().install(model, kernels)
        self._wrapped_layers.close()
        self._wrapped_layers.enter_context(call_after_attention(model, self._attended))

    def before_forward(self, chunks: Sequence[ChunkView]) -> None:
        """Send the blocks that the step completes for other engines."""
        if self._transfers is not None:
            self._transfers.begin([blocks for chunk in chunks if (blocks := self._completed_blocks(chunk))])

    def prepare(self, chunks: Sequence[ChunkView], batch: ForwardBatch) -> None:
        """Note the batch of the step: others may be computed before it, to record the model."""
        if self._transfers is not None:
            self._transfers.batch = batch

    def after_forward(self, chunks: Sequence[ChunkView]) -> None:
        """Send no more layers of the step."""
        if self._transfers is not None:
            self._transfers.begin(())

    def _attended(self, layer: int, batch: ForwardBatch) -> None:
        if self._transfers is not None:
            self._transfers.attended(layer, batch)

    def _completed_blocks(self, chunk: ChunkView) -> BlocksToSend | None:
        """Return the blocks that a chunk completes, if another engine gets them."""
        sequence, tiers = chunk.sequence, self._tiers
        transfer = sequence.request.transfer
        if transfer is None or not transfer.address or tiers is None or (keys := tiers.keys()) is None:
            return None
        engine = tiers.engine
        if engine.transfers is None or not engine.transfers.reaches(transfer.address):
            return None
        state = self._state_of(sequence)
        first, count, size = state.stored, chunk.end // engine.layout.tokens, engine.layout.tokens
        if count <= first:
            return None
        keys.extend(state.keys, sequence, count)
        return BlocksToSend(state.keys[first:count], sequence.slots[first * size : count * size], transfer.address)
