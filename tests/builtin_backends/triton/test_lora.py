"""Products of LoRA with an adapter for each row, interpreted against the definition, and compiled for Hopper."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from sglang_plug import LowRank, LowRankPart, LowRankTable
from sglang_plug.ops import lora as definitions
from sglang_plug_backends.triton import launch
from sglang_plug_backends.triton import lora as low_rank

from .compiling import assert_waits_first, assert_waits_first_as_assembled, compile_only

# The interpreter computes with numpy, which warns where a device does not.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")

CPU = torch.device("cpu")
BOUNDS = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SEGMENTS = (slice(0, 64), slice(64, 80), slice(80, 96))


def adapter(size: int, ranks: Sequence[int], columns: Sequence[slice], dtype: torch.dtype) -> LowRank:
    parts, first = [], 0
    for rank, own in zip(ranks, columns, strict=True):
        up = torch.randn(rank, own.stop - own.start).to(dtype)
        parts.append(LowRankPart(columns=own, ranks=slice(first, first + rank), up=up, scale=0.5 + first))
        first += rank
    return LowRank(down=torch.randn(first, size).to(dtype) / 8, parts=tuple(parts))


def same(x: Tensor, y: Tensor, table: LowRankTable, which: Tensor, where: object) -> Tensor:
    expected, actual = y.clone(), y.clone()
    definitions.add_low_rank(x, expected, table, which)
    low_rank.add_low_rank(x, actual, table, which)
    error = (actual.double() - expected.double()).norm() / (expected.double() - y.double()).norm().clamp(min=1e-9)
    assert error <= 3 * BOUNDS[x.dtype] * y.double().norm().clamp(min=1), (where, float(error))
    assert torch.equal(actual[which == 0], y[which == 0]), where
    return actual


@pytest.mark.interpreted
def test_what_is_added() -> None:
    assert launch.INTERPRETED
    for dtype, size in itertools.product(BOUNDS, (64, 1160)):
        table = LowRankTable(SEGMENTS, size, slots=4, dtype=dtype, device=CPU)
        table.put(1, adapter(size, (4, 8, 8), SEGMENTS, dtype))
        table.put(2, adapter(size, (16,), (slice(0, 96),), dtype))
        table.put(4, adapter(size, (3,), SEGMENTS[1:2], dtype))
        for which in ([1], [0, 2, 4, 1, 1, 0, 3, 2]):
            rows = len(which)
            x, y = torch.randn(rows, size).to(dtype), torch.zeros(rows, 96, dtype=dtype)
            actual = same(x, y, table, torch.tensor(which), (dtype, size, which))
            assert not actual[torch.tensor(which) == 3].any(), "no adapter has this slot"
            wide = torch.randn(rows, 200).to(dtype)
            same(wide[:, 8 : 8 + 64] if size == 64 else x, wide[:, 100:196], table, torch.tensor(which), "views")


@pytest.mark.interpreted
def test_adapters_come_and_go() -> None:
    table = LowRankTable(SEGMENTS, 64, slots=2, dtype=torch.float32, device=CPU)
    first, second = (adapter(64, (rank,) * 3, SEGMENTS, torch.float32) for rank in (8, 80))
    x, y, which = torch.randn(3, 64), torch.randn(3, 96), torch.tensor([1, 2, 1])
    table.put(1, first)
    before = same(x, y, table, which, "one")
    assert torch.equal(before[1], y[1])
    table.put(2, second)
    assert (table.max_ranks, table.max_part_ranks) == (256, 128)
    after = same(x, y, table, which, "larger")
    assert not torch.equal(after[1], y[1])
    table.put(1, None)
    gone = same(x, y, table, which, "gone")
    assert torch.equal(gone[0], y[0]) and torch.allclose(gone[1], after[1])
    x[0] = torch.nan
    broken = same(x, y, table, torch.tensor([0, 2, 2]), "NaN")
    assert not broken.isnan().any(), "rows are apart"
    with pytest.raises(ValueError, match="torch.float64"):  # it would be captured as the definition
        low_rank.add_low_rank(x, y.double(), table, which)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "ranks"), [(1, 64), (8, 256)])
def test_compiled(dtype: torch.dtype, rows: int, ranks: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kernels = compile_only(monkeypatch, tmp_path, low_rank)
    table = LowRankTable((slice(0, 4096), slice(4096, 5120)), 4096, slots=8, dtype=dtype, device=torch.device("cpu"))
    table.max_ranks = table.max_part_ranks = ranks
    x, y = torch.zeros(rows, 4096, dtype=dtype), torch.zeros(rows, 5120, dtype=dtype)
    low_rank.add_low_rank(x, y, table, torch.zeros(rows, dtype=torch.int64), overlap=True)
    assert [item.metadata.name for item in kernels] == ["shrink_kernel", "expand_kernel"]
    for kernel in kernels:
        assert_waits_first(kernel)
        assert_waits_first_as_assembled(kernel, tmp_path)
        assert ".v4.b32" in kernel.asm["ptx"] or ".v2.b64" in kernel.asm["ptx"], "matrices are read 16 bytes at a time"
