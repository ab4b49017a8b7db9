"""Indices, plans and shared wrappers of FlashInfer, with a stand-in that computes from the arrays it gets."""

from __future__ import annotations

import gc
import importlib.util
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from sglang_plug import Attention, AttentionShape, BuildEnv, ConfigError, ForwardBatch, KVPool
from sglang_plug.testing import check_attention_backend
from sglang_plug.testing.model.attention_inputs import ShuffledSlots, make_batch
from sglang_plug_backends.flashinfer.settings import FlashInferSettings

CPU = torch.device("cpu")
SMALL = FlashInferSettings(workspace_mib=1)
SHAPE = AttentionShape(heads=4, kv_heads=2, dim=64, layers=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_conforms(backend: ModuleType, dtype: torch.dtype) -> None:
    check_attention_backend(backend.FlashInferAttention, dtype=dtype, settings=SMALL, encoder=True)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_conforms_with_a_pool_in_float8(backend: ModuleType, kv_dtype: torch.dtype) -> None:
    check_attention_backend(backend.FlashInferAttention, dtype=torch.bfloat16, kv_dtype=kv_dtype, settings=SMALL)


def scene(new: list[int], contexts: list[int], page_size: int = 1) -> ForwardBatch:
    slots = ShuffledSlots(sum(contexts), len(contexts), page_size, torch.Generator().manual_seed(1))
    rows: list[list[int]] = [[] for _ in contexts]
    for row, length in zip(rows, contexts, strict=True):
        slots.extend(row, length)
    pool = KVPool(layers=1, slots=slots.rows, kv_heads=2, dim=64, value_dim=64, dtype=torch.bfloat16, device=CPU)
    return make_batch(rows, new, kv=pool, page_size=page_size, device=CPU)


def layer_of(attention: object, **options: float | None) -> Attention:
    return Attention(BuildEnv(attention=attention), 0, scale=0.1, **options)  # type: ignore[arg-type]


@torch.inference_mode()
def attend(layer: Attention, batch: ForwardBatch, heads: int = 4) -> torch.Tensor:
    count = len(batch.slots)
    k = torch.randn(count, 2, 64, dtype=torch.bfloat16)
    return layer(torch.randn(count, heads, 64, dtype=torch.bfloat16), k, k, batch)


def test_roles_follow_the_batch(backend: ModuleType, fake: ModuleType) -> None:
    attention = backend.FlashInferAttention(SHAPE, CPU, SMALL)
    batch = scene([1, 5, 1, 9], [20, 5, 7, 30], page_size=4)
    attention.plan(batch)
    decode, paged = batch.plan.parts
    assert (decode.role, paged.role) == ("decode", "paged")  # one of the two longer ones has a context
    assert decode.tokens.tolist() == [0, 6]
    assert decode.page_indptr.tolist() == [0, 5, 7] and decode.last_page.tolist() == [4, 3]
    assert paged.tokens.tolist() == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert paged.query_indptr.tolist() == [0, 5, 14]
    assert decode.pages.tolist() == [*(batch.tables[0, :20:4] // 4).tolist(), *(batch.tables[2, :7:4] // 4).tolist()]
    cold = scene([1, 5, 9], [20, 5, 9])
    attention.plan(cold)
    assert [(part.role, part.tokens) for part in cold.plan.parts] == [("decode", slice(0, 1)), ("ragged", slice(1, 15))]
    narrow = backend.FlashInferAttention(replace(SHAPE, kv_dtype=torch.float8_e4m3fn), CPU, SMALL)
    narrow.plan(cold)
    assert [part.role for part in cold.plan.parts] == ["decode", "paged"], "keys as they are kept, not as they were"


def test_each_kind_of_layer_plans_once_a_step(backend: ModuleType, fake: ModuleType) -> None:
    attention = backend.FlashInferAttention(SHAPE, CPU, SMALL)
    layers = [layer_of(attention), layer_of(attention, window=4), layer_of(attention), layer_of(attention, softcap=3.0)]
    for _ in range(3):
        batch = scene([1, 1], [9, 12])
        attention.plan(batch)
        for layer in layers:
            attend(layer, batch)
        plans = sum(wrapper.plans for wrapper in fake.Wrapper.instances)
        del batch
        gc.collect()
    assert len(fake.Wrapper.instances) == 3  # reused in each step
    assert plans == 9
    assert sorted(wrapper.options.window_left for wrapper in fake.Wrapper.instances) == [-1, -1, 3]


def test_batches_in_flight_have_wrappers_of_their_own(backend: ModuleType, fake: ModuleType) -> None:
    attention = backend.FlashInferAttention(SHAPE, CPU, SMALL)
    layer = layer_of(attention)
    for _ in range(2):  # the second step reuses the wrappers of the first
        first, second = scene([1], [9]), scene([1], [3])
        for batch in (first, second):
            attention.plan(batch)
        for batch in (first, second):
            attend(layer, batch)
        lent = [next(iter(batch.plan.lent.values())).wrapper for batch in (first, second)]
        assert lent[0] is not lent[1]
        del first, second, batch
        gc.collect()
    assert len(fake.Wrapper.instances) == 2


def test_tensor_cores_for_grouped_heads(backend: ModuleType, fake: ModuleType) -> None:
    for heads, expected in ((2, False), (6, False), (8, True), (14, True)):
        attention = backend.FlashInferAttention(AttentionShape(heads=heads, kv_heads=2, dim=64, layers=1), CPU, SMALL)
        batch = scene([1], [9])
        attention.plan(batch)
        attend(layer_of(attention), batch, heads)
        assert fake.Wrapper.instances[-1].tensor_cores is expected


def test_static_plans_share_the_page_buffer(backend: ModuleType, fake: ModuleType) -> None:
    attention = backend.FlashInferAttention(SHAPE, CPU, SMALL)
    layer = layer_of(attention)
    large, small = scene([1, 1, 1], [9, 40, 3]), scene([1], [30])
    for batch in (large, small):
        attention.static_plan(batch)
        attend(layer, batch)
    buffers = [wrapper.index for wrapper in fake.Wrapper.instances]
    assert all(wrapper.graph for wrapper in fake.Wrapper.instances)
    assert buffers[0][1].data_ptr() == buffers[1][1].data_ptr() and len(buffers[0][1]) == 120
    with pytest.raises(ValueError, match="one new token of each sequence"):
        attention.static_plan(scene([1, 2], [9, 9]))


def test_unsupported_shapes_are_refused(backend: ModuleType) -> None:
    for shape, reason in (
        (AttentionShape(heads=4, kv_heads=2, dim=80, layers=1), "not 80 and 80"),
        (AttentionShape(heads=4, kv_heads=2, dim=64, value_dim=48, layers=1), "not 64 and 48"),
        (
            AttentionShape(heads=16, kv_heads=1, dim=576, value_dim=512, values_in_keys=True, layers=1),
            "not 576 and 512; use --attention-backend triton",
        ),
        (AttentionShape(heads=7, kv_heads=2, dim=64, layers=1), "got 7 and 2"),
    ):
        with pytest.raises(ConfigError, match=reason):
            backend.FlashInferAttention(shape, CPU, SMALL)
    with pytest.raises(ConfigError, match=r"'fa2' only; leave --set flashinfer.prefill at auto"):
        backend.FlashInferAttention(
            replace(SHAPE, kv_dtype=torch.float8_e4m3fn), CPU, FlashInferSettings(workspace_mib=1, prefill="fa3")
        )
    attention = backend.FlashInferAttention(SHAPE, CPU, SMALL)
    batch = scene([1], [3])
    attention.plan(batch)
    q, k = torch.zeros(1, 4, 64), torch.zeros(1, 2, 64)
    assert batch.kv is not None
    batch.kv = KVPool(layers=1, slots=9, kv_heads=2, dim=64, value_dim=64, dtype=torch.float32, device=CPU)
    with pytest.raises(ConfigError, match="not in torch.float32"):
        layer_of(attention)(q, k, k, batch)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flashinfer") is None, reason="needs CUDA and flashinfer"
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_real_kernels_conform(dtype: torch.dtype) -> None:
    check_attention_backend("flashinfer", device="cuda", dtype=dtype, encoder=True)


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flashinfer") is None, reason="needs CUDA and flashinfer"
)
@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_real_kernels_conform_with_a_pool_in_float8(kv_dtype: torch.dtype) -> None:
    check_attention_backend("flashinfer", device="cuda", dtype=torch.bfloat16, kv_dtype=kv_dtype)
