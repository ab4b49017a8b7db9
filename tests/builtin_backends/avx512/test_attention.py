"""The compiled attention passes the conformance tests and refuses unsupported shapes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from sglang_plug import AttentionShape, ConfigError, ForwardBatch
from sglang_plug.contracts.model.batch import KVPool
from sglang_plug.testing import check_attention_backend
from sglang_plug_backends.avx512.attention import CompiledAttention
from sglang_plug_backends.torch_native.attention import TorchAttention

pytestmark = pytest.mark.usefixtures("compiled")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class FakeLayer:
    """The attributes of a layer that a backend reads."""

    scale: float = 1.0
    window: int | None = None
    softcap: float | None = None
    causal: bool = True
    index: int = 0


def test_the_backend_passes_the_conformance_tests() -> None:
    check_attention_backend("avx512", dtype=torch.bfloat16, encoder=True)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [None, 90])
def test_long_prompts_are_cut_for_the_threads(threads: int, window: int | None) -> None:
    shape = AttentionShape(heads=6, kv_heads=3, dim=32, layers=1)
    actual, expected = (attend(backend, shape, window, threads) for backend in (CompiledAttention, TorchAttention))
    torch.testing.assert_close(actual.float(), expected.float(), atol=2e-2, rtol=2e-2)


def attend(
    backend: type[CompiledAttention] | type[TorchAttention], shape: AttentionShape, window: int | None, threads: int
) -> torch.Tensor:
    torch.manual_seed(3)
    new, length = 450, 700
    pool = KVPool.of(shape, slots=length + 1, dtype=torch.bfloat16, device=CPU)
    for part in (*pool.k, *pool.v):
        part.normal_()
    slots = torch.randperm(length) + 1
    batch = ForwardBatch(
        input_ids=torch.zeros(new, dtype=torch.int64),
        positions=torch.arange(length - new, length),
        slots=slots[length - new :].contiguous(),
        tables=slots[None].contiguous(),
        query_lens=[new],
        kv_lens=[length],
        kv=pool,
    )
    q, k, v = (torch.randn(new, heads, shape.dim).bfloat16() for heads in (6, 3, 3))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        attention_backend = backend(shape, CPU)
        attention_backend.plan(batch)
        return attention_backend.run(FakeLayer(scale=shape.dim**-0.5, window=window), q, k, v, batch)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (AttentionShape(heads=4, kv_heads=4, dim=33, layers=1), "even width, not 33"),
        (AttentionShape(heads=4, kv_heads=4, dim=32, layers=1, sinks=True), "no attention sinks"),
        (AttentionShape(heads=5, kv_heads=2, dim=32, layers=1), "got 5 and 2"),
    ],
)
def test_refused_shapes(shape: AttentionShape, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CompiledAttention(shape, CPU)


def test_refused_dtype() -> None:
    with pytest.raises(ConfigError, match="bfloat16, not float32; use --dtype bfloat16"):
        check = CompiledAttention(AttentionShape(heads=1, kv_heads=1, dim=4, layers=1), CPU)
        x = torch.zeros(1, 1, 4)
        check.run(FakeLayer(), x, x, x, None)  # type: ignore[arg-type]
