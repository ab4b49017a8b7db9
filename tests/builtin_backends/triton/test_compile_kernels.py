"""The kernel set compiles for Hopper with its real arguments; no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import AttentionShape, KVPool, SamplingOptions, SamplingParams  # noqa: E402
from sglang_plug_backends.triton import kernel_set as kernels  # noqa: E402
from sglang_plug_backends.triton import matrix_vector as row  # noqa: E402
from sglang_plug_backends.triton import moe, sampling  # noqa: E402
from sglang_plug_backends.triton.settings import TritonSettings  # noqa: E402

from .compiling import (  # noqa: E402
    SHARED_MEMORY,
    assert_waits_first,
    assert_waits_first_as_assembled,
    compile_only,
)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Return the kernels that the calls of a test compiled for Hopper."""
    return compile_only(monkeypatch, tmp_path, kernels, moe, sampling, row)


@pytest.fixture
def compiled(recorded: list[Any]) -> Iterator[list[Any]]:
    """Return the compiled kernels; each must wait for the previous ones first."""
    yield recorded
    assert recorded
    for kernel in recorded:
        assert_waits_first(kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_row_kernels(compiled: list[Any], dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.zeros(3, 4096, dtype=dtype)
    kernel_set = kernels.build()
    kernel_set.rms_norm(x, x[0], 1e-5)
    kernel_set.rms_norm(x.view(3, 32, 128)[:, :8], x[0, :128], 1e-5)
    kernel_set.add_rms_norm(x, x.clone(), x[0], 1e-5)
    kernel_set.silu_mul(x)
    kernel_set.apply_rope(x.view(3, 32, 128), x[:, :128], x[:, :128])
    kernel_set.apply_rope(x.view(3, 32, 128), x[:, :64], x[:, :64])
    assert [kernel.metadata.name for kernel in compiled] == [
        "rms_norm_kernel",
        "rms_norm_kernel",
        "add_rms_norm_kernel",
        "silu_mul_kernel",
        "rope_kernel",
        "rope_kernel",
    ]
    assert_waits_first_as_assembled(compiled[2], tmp_path)
    assert ["prefetch.global.L2" in kernel.asm["ptx"] for kernel in compiled] == [True] * 3 + [False] * 3


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "width"),
    [
        (torch.bfloat16, None, 128),
        (torch.bfloat16, torch.float8_e4m3fn, 128),
        (torch.float16, torch.float8_e5m2, 96),
        (torch.float32, torch.bfloat16, 128),
    ],
)
def test_rope_store(
    compiled: list[Any],
    dtype: torch.dtype,
    kv_dtype: torch.dtype | None,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(kernels, "writes", lambda dtype, device: True)
    shape = AttentionShape(heads=32, kv_heads=8, dim=128, layers=1, kv_dtype=kv_dtype)
    kv = KVPool.of(shape, slots=9, dtype=dtype, device=torch.device("cpu"))
    qkv, angles = torch.zeros(3, 48, 128, dtype=dtype), torch.zeros(3, width, dtype=dtype)
    store = kernels.build().rope_store
    assert store is not None
    store(qkv[:, :32], qkv[:, 32:40], qkv[:, 40:], angles, angles, kv, 0, torch.arange(3))
    assert [kernel.metadata.name for kernel in compiled] == ["rope_store_kernel"]
    assert_waits_first_as_assembled(compiled[0], tmp_path)
    if kv.k[0].dtype.itemsize == 1:
        assert "satfinite" in compiled[0].asm["ptx"], "rounded in hardware"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "tokens"), [(torch.bfloat16, 4), (torch.bfloat16, 200), (torch.float16, 2000), (torch.float32, 50)]
)
def test_experts(compiled: list[Any], dtype: torch.dtype, tokens: int) -> None:
    x, gate_up = torch.zeros(tokens, 256, dtype=dtype), torch.zeros(8, 512, 256, dtype=dtype)
    experts = torch.arange(2 * tokens).view(tokens, 2) % 8
    kernels.build().moe(x, gate_up, torch.zeros(8, 256, 256, dtype=dtype), experts, torch.ones(tokens, 2))
    assert [kernel.metadata.name for kernel in compiled] == ["grouped_kernel", "silu_mul_kernel", "grouped_kernel"]
    assert max(kernel.metadata.shared for kernel in compiled) <= SHARED_MEMORY
    if tokens >= 200:
        assert all("wgmma" in item.asm["ptx"] for item in compiled[::2])


def test_sampling_kernels_match_the_definition(compiled: list[Any]) -> None:
    vocabulary = 128_256
    logits = torch.zeros(2, vocabulary)
    options = SamplingOptions.of([SamplingParams(top_k=5, top_p=0.9, min_p=0.1)] * 2, vocabulary, lambda tensor: tensor)
    kernels.build().mask_logits(logits, None, torch.zeros(2, vocabulary // 32, dtype=torch.int32))
    kernels.build().sample_tokens(logits, options, torch.zeros(2, dtype=torch.float64))
    assert [kernel.metadata.name for kernel in compiled] == ["mask_kernel", "draw_kernel"]
    assert all("ld.local" not in kernel.asm["ptx"] for kernel in compiled)


def test_one_row(compiled: list[Any], tmp_path: Path) -> None:
    weight = torch.zeros(64, 4096, dtype=torch.bfloat16)
    for tiles in row.TILES:
        row.multiply_row(weight, None, weight[:1], gated=False, tiles=tiles, overlap=True)
        row.multiply_row(weight, weight[0], weight[:1], gated=True, tiles=tiles, overlap=True)
    assert {kernel.metadata.name for kernel in compiled} == {"row_kernel"} and len(compiled) == 2 * len(row.TILES)
    assert max(kernel.metadata.shared for kernel in compiled) <= SHARED_MEMORY
    assert all("ld.local" not in kernel.asm["ptx"] for kernel in compiled)
    assert all("prefetch.global.L2" in kernel.asm["ptx"] for kernel in compiled)
    for item in compiled[-4:]:
        assert_waits_first_as_assembled(item, tmp_path)


def test_nothing_overlaps_where_it_is_switched_off(recorded: list[Any]) -> None:
    kernel_set, x = kernels.build(TritonSettings(overlap_launches=False)), torch.zeros(1, 128)
    kernel_set.rms_norm(x, x[0], 1e-5)
    row.multiply_row(x.expand(8, 128).bfloat16(), None, x.bfloat16(), gated=False, tiles=row.TILES[0])
    assert len(recorded) == 2
    for kernel in recorded:
        assert not kernel.metadata.launch_pdl
        assert "griddepcontrol" not in kernel.asm["ptx"] and "prefetch" not in kernel.asm["ptx"]
