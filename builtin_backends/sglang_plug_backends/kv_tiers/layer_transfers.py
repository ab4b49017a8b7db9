"""Sends the blocks of prompts to other engines layer by layer, while later layers are computed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sglang_plug import AsyncHostCopy, Attention, ForwardBatch, KVBlockPart, KVPool, Model, upload
from sglang_plug_backends.wrapped_attention import Attend, wrap_attention

from .tier_engine import TierEngine


@dataclass(frozen=True, slots=True)
class BlocksToSend:
    """Blocks of one prompt that a step completes, and where they are sent."""

    keys: Sequence[bytes]
    slots: array[int]
    """The KV slots of their tokens."""
    address: str


@dataclass(frozen=True, slots=True)
class _SentBlocks:
    """Blocks of a step that is computed now, with their slots on the device."""

    keys: Sequence[bytes]
    slots: Tensor
    address: str


class LayerTransfers:
    """Sends each layer of the blocks of a step as soon as the attention of that layer has run.

    Args:
        engine: sends them.
        kv: the KV pool.
    """

    def __init__(self, engine: TierEngine, kv: KVPool) -> None:
        self._engine, self._kv = engine, kv
        self._blocks: Sequence[_SentBlocks] = ()
        self.batch: ForwardBatch | None = None
        """The batch of the step whose blocks are sent."""
        self._layers = set[int]()

    def begin(self, blocks: Sequence[BlocksToSend]) -> None:
        """Send ``blocks`` during the forward pass of the next ``batch``, and none of an earlier one any more."""
        device = self._kv.k[0].device
        self._blocks = [
            _SentBlocks(block.keys, upload(block.slots, torch.int64, device), block.address) for block in blocks
        ]
        self._layers.clear()
        self.batch = None

    def attended(self, layer: int, batch: ForwardBatch) -> None:
        """Queue sending a layer, which has the keys and values of ``batch`` now.

        Nothing is sent if that is another batch, such as one by which a recording of the model is made.
        """
        if not self._blocks or layer in self._layers or batch is not self.batch:
            return
        self._layers.add(layer)
        layout = self._engine.layout
        for blocks in self._blocks:
            copies = layout.copy_layer(self._kv, blocks.slots, layer)
            size = len(blocks.keys) * layout.layer_bytes
            self._engine.send_parts(partial(self._parts, blocks.keys, copies, layer), size, blocks.address)

    def _parts(self, keys: Sequence[bytes], copies: AsyncHostCopy, layer: int) -> list[KVBlockPart]:
        return self._engine.layout.layer_parts(keys, copies.read(), layer)


def call_after_attention(model: Model, attended: Callable[[int, ForwardBatch], None]) -> AbstractContextManager[None]:
    """Have ``attended`` called with the index and batch of each attention of ``model`` that has run, in the context.

    It is not called for steps that are replayed as a whole.
    """

    def around(attend: Attend) -> Attend:
        def attend_and_call(
            layer: Attention, q: Tensor, k: Tensor, v: Tensor, batch: ForwardBatch
        ) -> Tensor | tuple[Tensor, ...]:
            result = attend(layer, q, k, v, batch)
            attended(layer.index, batch)
            return result

        return attend_and_call

    return wrap_attention(model, around)
