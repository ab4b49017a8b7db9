"""The KV pool: what a model's geometry takes, and where values are that are a part of the keys."""

from __future__ import annotations

import torch

from sglang_plug import AttentionShape, KVPool

CPU = torch.device("cpu")
GROUPED = AttentionShape(heads=8, kv_heads=2, dim=6, value_dim=4, layers=3)
LATENT = AttentionShape(heads=8, kv_heads=1, dim=6, value_dim=4, values_in_keys=True, layers=3)


def bytes_of(pool: KVPool) -> int:
    memories = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in (*pool.k, *pool.v)}
    return sum(memories.values())


def test_a_pool_takes_what_the_shape_says() -> None:
    for shape, each in ((GROUPED, 2 * (6 + 4)), (LATENT, 6)):
        assert shape.pooled == each
        pool = KVPool.of(shape, slots=10, dtype=torch.float32, device=CPU)
        assert bytes_of(pool) == 3 * 10 * each * 4
        assert [tuple(part.shape) for part in pool.k] == [(10, shape.kv_heads, 6)] * 3
        assert [tuple(part.shape) for part in pool.v] == [(10, shape.kv_heads, 4)] * 3


def test_values_in_keys_are_stored_once() -> None:
    pool = KVPool.of(LATENT, slots=10, dtype=torch.float32, device=CPU)
    keys, slots = torch.randn(2, 1, 6), torch.tensor([7, 3])
    pool.store(1, keys, keys[..., :4], slots)
    assert torch.equal(pool.k[1][slots], keys)
    assert torch.equal(pool.v[1][slots], keys[..., :4])
    assert not pool.k[0].any() and not pool.v[2].any()
