"""The KV pool: its size for a model's geometry, and values that are a part of the keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sglang_plug import AttentionShape, KVPool, KVScale
from sglang_plug.contracts.model.batch import narrowed, widened

CPU = torch.device("cpu")
GROUPED = AttentionShape(heads=8, kv_heads=2, dim=6, value_dim=4, layers=3)
LATENT = AttentionShape(heads=8, kv_heads=1, dim=6, value_dim=4, values_in_keys=True, layers=3)


def bytes_of(pool: KVPool) -> int:
    memories = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in (*pool.k, *pool.v)}
    return sum(memories.values())


def test_a_pool_takes_what_the_shape_says() -> None:
    for shape, each in ((GROUPED, 2 * (6 + 4)), (LATENT, 6)):
        assert shape.kv_numel_per_token == each
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
    assert [part.data_ptr() for part in pool.parts] == [keys.data_ptr() for keys in pool.k]


def test_parts_are_the_tensors_of_one_layer_after_the_other() -> None:
    pool = KVPool.of(GROUPED, slots=10, dtype=torch.float32, device=CPU)
    assert [id(part) for part in pool.parts] == [
        id(part) for layer in range(3) for part in (pool.k[layer], pool.v[layer])
    ]


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_pool_in_float8_takes_half_of_bfloat16(dtype: torch.dtype) -> None:
    for shape in (GROUPED, LATENT):
        wide = KVPool.of(shape, slots=10, dtype=torch.bfloat16, device=CPU)
        narrow = KVPool.of(replace(shape, kv_dtype=dtype), slots=10, dtype=torch.bfloat16, device=CPU)
        assert narrow.k[0].dtype == dtype and 2 * bytes_of(narrow) == bytes_of(wide)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("model", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_come_back_as_near_as_float8_has_them(dtype: torch.dtype, model: torch.dtype) -> None:
    pool = KVPool.of(replace(GROUPED, kv_dtype=dtype), slots=10, dtype=model, device=CPU)
    pool.k_scale[1], pool.v_scale[1] = 0.25, 4.0
    slots = torch.tensor([7, 3])
    k, v = torch.randn(2, 2, 6).to(model), (40 * torch.randn(2, 2, 4)).to(model)
    pool.store(1, k, v, slots)
    for kept, scale, original in ((pool.k[1], 0.25, k), (pool.v[1], 4.0, v)):
        actual = widened(kept[slots], model, scale)
        assert actual.dtype == model
        near = 0.5 * torch.finfo(dtype).eps
        torch.testing.assert_close(actual.float(), original.float(), rtol=near + 0.001, atol=scale * 0.01)
    assert not pool.k[0].float().any() and not pool.v[2].float().any()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_what_float8_cannot_hold_is_clamped(dtype: torch.dtype) -> None:
    limit = torch.finfo(dtype).max
    numbers = torch.tensor([0.0, 1e30, -1e30, torch.inf, -torch.inf, 3 * limit])
    held = narrowed(numbers, dtype, 2.0)
    assert held.float().tolist() == [0.0, limit, -limit, limit, -limit, limit]
    assert torch.equal(widened(held, torch.float32, 2.0), 2 * held.float())


def test_a_number_that_is_none_stays_none() -> None:
    """NaN stays NaN in FP8, so that a row with broken keys is noticed and not served."""
    assert narrowed(torch.tensor([torch.nan]), torch.float8_e4m3fn, 1.0).float().isnan().all()


def test_only_a_pool_in_float8_has_scales() -> None:
    scales = {0: KVScale(0.5, 0.25), 2: KVScale(3.0, 4.0)}
    for dtype in FLOAT8:
        pool = KVPool.of(replace(GROUPED, kv_dtype=dtype), slots=2, dtype=torch.float32, device=CPU)
        pool.use_scales(scales)
        assert (pool.k_scale, pool.v_scale) == ([0.5, 1.0, 3.0], [0.25, 1.0, 4.0])
        pool.use_scales({1: KVScale(7.0, 8.0)})
        assert (pool.k_scale, pool.v_scale) == ([1.0, 7.0, 1.0], [1.0, 8.0, 1.0])
        latent = KVPool.of(replace(LATENT, kv_dtype=dtype), slots=2, dtype=torch.float32, device=CPU)
        latent.use_scales(scales)
        assert latent.k_scale == latent.v_scale == [0.5, 1.0, 3.0]
    for shape in (GROUPED, replace(GROUPED, kv_dtype=torch.bfloat16)):
        pool = KVPool.of(shape, slots=2, dtype=torch.float32, device=CPU)
        pool.use_scales(scales)
        assert pool.k_scale == pool.v_scale == [1.0] * 3
