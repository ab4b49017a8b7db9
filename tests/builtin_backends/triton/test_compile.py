"""The kernels compile for Hopper with the backend's real arguments; no GPU is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sglang_plug import Attention, AttentionShape, BuildEnv, KVPool
from sglang_plug.testing.model.attention_inputs import ShuffledSlots, make_batch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug_backends.triton import attention  # noqa: E402
from sglang_plug_backends.triton.settings import TritonSettings  # noqa: E402

from .compiling import SHARED_MEMORY, assert_waits_first, compile_only  # noqa: E402

LATENT = AttentionShape(heads=128, kv_heads=1, dim=576, value_dim=512, values_in_keys=True, layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape", "options"),
    [
        (torch.bfloat16, AttentionShape(heads=8, kv_heads=2, dim=128, layers=1), {}),
        (torch.float16, AttentionShape(heads=8, kv_heads=2, dim=256, layers=1), {"window": 100, "softcap": 30.0}),
        (torch.float32, AttentionShape(heads=8, kv_heads=2, dim=80, layers=1), {}),
        (torch.bfloat16, AttentionShape(heads=8, kv_heads=2, dim=128, layers=1, kv_dtype=torch.float8_e4m3fn), {}),
        (torch.float16, AttentionShape(heads=8, kv_heads=2, dim=256, layers=1, kv_dtype=torch.float8_e5m2), {}),
        (torch.float32, AttentionShape(heads=8, kv_heads=2, dim=128, layers=1, kv_dtype=torch.float8_e4m3fn), {}),
        (torch.bfloat16, replace(LATENT, kv_dtype=torch.float8_e4m3fn), {}),
        (torch.bfloat16, AttentionShape(heads=64, kv_heads=8, dim=64, layers=1, sinks=True), {"window": 128}),
        (torch.bfloat16, LATENT, {}),
        (torch.float32, LATENT, {}),
    ],
)
def test_kernels_compile_for_hopper(
    dtype: torch.dtype,
    shape: AttentionShape,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    kernels = compile_only(monkeypatch, tmp_path, attention)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "INTERPRETED", True)  # passes the check for a GPU
        backend = attention.TritonAttention(shape, torch.device("cpu"), TritonSettings(splits=4))
    layer = Attention(BuildEnv(attention=backend), 0, scale=1.0, **options)
    launch(layer, backend, dtype)
    compiled = {kernel.metadata.name: kernel for kernel in kernels}
    assert sorted(compiled) == ["decode_kernel", "merge_kernel", "prefill_kernel"]
    for name, kernel in compiled.items():
        assert kernel.metadata.shared <= SHARED_MEMORY, name
        assert_waits_first(kernel)
    if dtype != torch.float32 and shape.dim <= 256:
        assert "wgmma" in compiled["prefill_kernel"].asm["ptx"]


def launch(layer: Attention, backend: attention.TritonAttention, dtype: torch.dtype) -> None:
    """Launch one step of a long prompt and one decoded token."""
    device, shape = torch.device("cpu"), backend.shape
    slots = ShuffledSlots(420, 2, 1, torch.Generator())
    contexts: list[list[int]] = [[], []]
    slots.extend(contexts[0], 200)
    slots.extend(contexts[1], 220)
    pool = KVPool.of(shape, slots=slots.rows, dtype=dtype, device=device)
    batch = make_batch(contexts, [200, 1], kv=pool, device=device)
    backend.plan(batch)
    keys = torch.zeros(201, shape.kv_heads, shape.dim, dtype=dtype)
    queries, values = torch.zeros(201, shape.heads, shape.dim, dtype=dtype), keys[..., : shape.value_dim]
    if shape.sinks:
        layer.with_sinks(queries, keys, values, torch.zeros(shape.heads), batch)
    else:
        layer(queries, keys, values, batch)
