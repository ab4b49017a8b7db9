"""The layers of a step's blocks that are sent during the forward pass."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import torch

from sglang_plug import KVPool
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout
from sglang_plug_backends.kv_tiers.layer_transfers import BlocksToSend, LayerTransfers

SLOTS = array("q", [9, 8, 7, 6])


def test_only_the_batch_of_the_step_is_sent() -> None:
    """Attention of another batch, such as one for a graph capture, sends nothing although the step's blocks are
    known."""
    kv = KVPool(layers=2, slots=16, kv_heads=1, dim=4, value_dim=4, dtype=torch.float32, device=torch.device("cpu"))
    layout, sent = BlockLayout.of(kv, 4), list[bytes]()

    def send_parts(parts: Any, size: int, address: str) -> None:
        sent.extend(bytes(part.data) for part in parts())

    engine: Any = SimpleNamespace(layout=layout, send_parts=send_parts)
    transfers, recorded, computed = LayerTransfers(engine, kv), Mock(), Mock()
    transfers.begin([BlocksToSend([b"key"], SLOTS, "somewhere")])
    transfers.attended(0, recorded)
    transfers.batch = computed
    transfers.attended(0, recorded)
    assert sent == []
    for keys, values in zip(kv.k, kv.v, strict=True):
        keys[SLOTS.tolist()], values[SLOTS.tolist()] = 1.0, 2.0
    for layer in (0, 1, 0):
        transfers.attended(layer, computed)
    block = torch.cat((torch.full((16,), 1.0), torch.full((16,), 2.0))).numpy().tobytes()
    assert sent == [block, block]
    transfers.begin(())
    transfers.attended(0, computed)
    assert len(sent) == 2
