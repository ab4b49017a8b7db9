"""Blocks of every dtype and layout of a KV pool are restored exactly."""

from __future__ import annotations

from array import array

import pytest
import torch

from sglang_plug import KVPool
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
CPU = torch.device("cpu")


def pool(dtype: torch.dtype, dim: int, value_dim: int, values_in_keys: bool) -> KVPool:
    """Return a KV pool filled with random bytes."""
    kv = KVPool(
        layers=3,
        slots=64,
        kv_heads=1,
        dim=dim,
        value_dim=value_dim,
        dtype=dtype,
        device=CPU,
        values_in_keys=values_in_keys,
    )
    for number, keys in enumerate(kv.k if values_in_keys else [*kv.k, *kv.v]):
        content = keys.view(torch.uint8)
        content.copy_(torch.randint(0, 256, content.shape, generator=torch.Generator().manual_seed(number)))
    return kv


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "value_dim", "values_in_keys"), [(8, 8, False), (5, 3, False), (12, 8, True)])
def test_blocks_come_back(dtype: torch.dtype, dim: int, value_dim: int, values_in_keys: bool) -> None:
    source, target = pool(dtype, dim, value_dim, values_in_keys), pool(dtype, dim, value_dim, values_in_keys)
    layout = BlockLayout.of(source, 4)
    slots = array("q", [9, 8, 7, 6, 50, 51, 52, 53, 1, 2, 3, 4])
    blocks = layout.blocks(layout.copy_out(source, slots).read())
    assert [block.nbytes for block in blocks] == [layout.bytes] * 3
    rows = layout.rows([memoryview(bytes(block)) for block in blocks], CPU)
    others = array("q", [20, 21, 22, 23, 24, 25])
    before = [keys.clone().view(torch.uint8) for keys in target.k]
    layout.copy_in(target, others, rows, 6)  # a part of the blocks
    for layer in range(3):
        for mine, theirs in ((source.k, target.k), (source.v, target.v)):
            expected = mine[layer].contiguous().view(torch.uint8)[slots[6:].tolist()]
            assert torch.equal(theirs[layer].contiguous().view(torch.uint8)[others.tolist()], expected)
        assert torch.equal(target.k[layer].view(torch.uint8)[:20], before[layer][:20]), "other slots are not written"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("dim", "value_dim", "values_in_keys"), [(8, 8, False), (5, 3, False), (12, 8, True)])
def test_the_parts_of_all_layers_are_the_blocks(
    dtype: torch.dtype, dim: int, value_dim: int, values_in_keys: bool
) -> None:
    kv = pool(dtype, dim, value_dim, values_in_keys)
    layout, slots = BlockLayout.of(kv, 4), array("q", [9, 8, 7, 6, 50, 51, 52, 53])
    whole, keys = layout.blocks(layout.copy_out(kv, slots).read()), [b"a", b"b"]
    contents = {key: bytearray(layout.bytes) for key in keys}
    for layer in reversed(range(3)):
        copies = layout.copy_layer(kv, torch.tensor(slots), layer)
        for part in layout.layer_parts(keys, copies.read(), layer):
            assert (part.start, part.size, part.data.nbytes) == (
                layer * layout.layer_bytes,
                layout.bytes,
                layout.bytes // 3,
            )
            contents[part.key][part.start : part.start + part.data.nbytes] = part.data.cast("B")
    assert [contents[key] for key in keys] == whole


def test_the_content_of_a_block_is_that_of_its_tokens_alone() -> None:
    kv = pool(torch.float32, 4, 4, False)
    layout = BlockLayout.of(kv, 4)
    slots = array("q", range(8, 24))
    together = layout.blocks(layout.copy_out(kv, slots).read())
    alone = [layout.blocks(layout.copy_out(kv, slots[start : start + 4]).read())[0] for start in range(0, 16, 4)]
    assert together == alone
    assert len(set(map(bytes, together))) == 4
