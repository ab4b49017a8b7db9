"""What adapters add, each row its own: interpreted against the definition, and compiled for Hopper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0")
pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import LowRankTable
from sglang_plug_backends.triton import launch, low_rank

from .compiling import CompileOnly, assert_waits_first, assert_waits_first_as_assembled

HEADER = """
import itertools
import torch
from sglang_plug import LowRank, LowRankPart, LowRankTable
from sglang_plug import low_rank as definitions
from sglang_plug_backends.triton import low_rank
from sglang_plug_backends.triton.launch import INTERPRETED

assert INTERPRETED
CPU = torch.device("cpu")
BOUNDS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SEGMENTS = (slice(0, 64), slice(64, 80), slice(80, 96))

def adapter(size, ranks, columns, dtype):
    parts, first = [], 0
    for rank, own in zip(ranks, columns, strict=True):
        up = torch.randn(rank, own.stop - own.start).to(dtype)
        parts.append(LowRankPart(columns=own, ranks=slice(first, first + rank), up=up, scale=0.5 + first))
        first += rank
    return LowRank(down=torch.randn(first, size).to(dtype) / 8, parts=tuple(parts))

def same(x, y, table, which, where):
    expected, found = y.clone(), y.clone()
    definitions.add_low_rank(x, expected, table, which)
    low_rank.add_low_rank(x, found, table, which)
    error = (found.double() - expected.double()).norm() / (expected.double() - y.double()).norm().clamp(min=1e-9)
    assert error <= 3 * BOUNDS[x.dtype] * y.double().norm().clamp(min=1) , (where, float(error))
    assert torch.equal(found[which == 0], y[which == 0]), where
    return found
"""
GRID = """
for dtype, size in itertools.product(BOUNDS, (64, 1160)):
    table = LowRankTable(SEGMENTS, size, places=4, dtype=dtype, device=CPU)
    table.put(1, adapter(size, (4, 8, 8), SEGMENTS, dtype))
    table.put(2, adapter(size, (16,), (slice(0, 96),), dtype))
    table.put(4, adapter(size, (3,), SEGMENTS[1:2], dtype))
    for which in ([1], [0, 2, 4, 1, 1, 0, 3, 2]):
        rows = len(which)
        x, y = torch.randn(rows, size).to(dtype), torch.zeros(rows, 96, dtype=dtype)
        found = same(x, y, table, torch.tensor(which), (dtype, size, which))
        assert not found[torch.tensor(which) == 3].any(), "nobody's place"
        wide = torch.randn(rows, 200).to(dtype)
        same(wide[:, 8 : 8 + 64] if size == 64 else x, wide[:, 100:196], table, torch.tensor(which), "views")
"""
CHANGES = """
table = LowRankTable(SEGMENTS, 64, places=2, dtype=torch.float32, device=CPU)
first, second = (adapter(64, (rank,) * 3, SEGMENTS, torch.float32) for rank in (8, 80))
x, y, which = torch.randn(3, 64), torch.randn(3, 96), torch.tensor([1, 2, 1])
table.put(1, first)
before = same(x, y, table, which, "one")
assert torch.equal(before[1], y[1])
table.put(2, second)
assert (table.most_ranks, table.most_part_ranks) == (256, 128)
after = same(x, y, table, which, "larger")
assert not torch.equal(after[1], y[1])
table.put(1, None)
gone = same(x, y, table, which, "gone")
assert torch.equal(gone[0], y[0]) and torch.allclose(gone[1], after[1])
x[0] = torch.nan
broken = same(x, y, table, torch.tensor([0, 2, 2]), "NaN")
assert not broken.isnan().any(), "rows are apart"
try:
    low_rank.add_low_rank(x, y.double(), table, which)
except ValueError as error:
    assert "torch.float64" in str(error)
else:
    raise AssertionError("would be captured as the definition")
"""


@pytest.mark.parametrize("script", [GRID, CHANGES], ids=["grid", "changes"])
def test_what_is_added(script: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", HEADER + script],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "ranks"), [(1, 64), (8, 256)])
def test_compiled(dtype: torch.dtype, rows: int, ranks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if launch.INTERPRETED:
        pytest.skip("the interpreter is on, so there is nothing to compile")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels: list[Any] = []
    for name in ("shrink_kernel", "expand_kernel"):
        monkeypatch.setattr(low_rank, name, CompileOnly(getattr(low_rank, name), kernels.append))
    monkeypatch.setattr(low_rank, "runs", lambda *tensors: True)
    monkeypatch.setattr(launch, "can_overlap", lambda device: True)
    table = LowRankTable((slice(0, 4096), slice(4096, 5120)), 4096, places=8, dtype=dtype, device=torch.device("cpu"))
    table.most_ranks = table.most_part_ranks = ranks
    x, y = torch.zeros(rows, 4096, dtype=dtype), torch.zeros(rows, 5120, dtype=dtype)
    low_rank.add_low_rank(x, y, table, torch.zeros(rows, dtype=torch.int64), overlap=True)
    assert [one.metadata.name for one in kernels] == ["shrink_kernel", "expand_kernel"]
    for one in kernels:
        assert_waits_first(one)
        assert_waits_first_as_assembled(one, tmp_path)
        assert ".v4.b32" in one.asm["ptx"] or ".v2.b64" in one.asm["ptx"], "matrices are read 16 bytes at a time"
