"""Copies of the KV tiers' blocks between the host and the device."""

from __future__ import annotations

from array import array

import pytest
import torch

from sglang_plug import KVPool
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout
from tests.fake_cuda.device.tensors import clock

CUDA = torch.device("cuda")


@pytest.mark.usefixtures("device")
def test_blocks_reach_the_device_without_waiting() -> None:
    kv = KVPool(layers=2, slots=32, kv_heads=1, dim=4, value_dim=4, dtype=torch.float32, device=CUDA)
    layout = BlockLayout.of(kv, 4)
    token = 2 * 2 * 4 * 4
    blocks = [memoryview(bytearray([number] * 4 * token)) for number in (1, 2)]
    clock.waits.clear()
    rows = layout.rows(blocks, CUDA)
    assert all(part.is_pinned() for part in rows)
    layout.copy_in(kv, array("q", range(8, 16)), rows, 0)
    copies = layout.copy_out(kv, range(8, 16))
    assert not clock.waits
    assert [bytes(block) for block in layout.blocks(copies.read())] == [bytes(block) for block in blocks]
