"""LoRA adapter tables: their capacity, their rows, and the definition of the product."""

from __future__ import annotations

import pytest
import torch

from sglang_plug import LowRank, LowRankPart, LowRankTable
from sglang_plug.ops.lora import COUNT, DOWN, FIELDS, FIRST, HEADER, RANKS, STRIDE, UP, add_low_rank

SEGMENTS = (slice(0, 8), slice(8, 12), slice(12, 16))


def table(slots: int = 3) -> LowRankTable:
    return LowRankTable(SEGMENTS, 8, slots=slots, dtype=torch.float32, device=torch.device("cpu"))


def adapter(*columns: slice, rank: int = 2, size: int = 8) -> LowRank:
    parts = [
        LowRankPart(
            columns=own,
            ranks=slice(rank * number, rank * (number + 1)),
            up=torch.randn(rank, own.stop - own.start),
            scale=0.5,
        )
        for number, own in enumerate(columns)
    ]
    return LowRank(down=torch.randn(rank * len(columns), size), parts=tuple(parts))


def test_entries() -> None:
    lora_table, whole = table(), adapter(slice(0, 16))
    two = adapter(SEGMENTS[0], SEGMENTS[2], rank=70)
    lora_table.put(1, whole)
    lora_table.put(3, two)
    fields = lora_table.entries[:, HEADER:].view(4, 3, FIELDS)
    assert lora_table.entries[1, DOWN] == whole.down.data_ptr() and lora_table.entries[1, RANKS] == 2
    up = whole.parts[0].up.data_ptr()
    assert fields[1, :, UP].tolist() == [up, up + 8 * 4, up + 12 * 4]
    assert fields[1, :, COUNT].tolist() == [2, 2, 2] and fields[1, :, STRIDE].tolist() == [16, 16, 16]
    assert lora_table.entries[3, RANKS] == 140
    assert fields[3, :, FIRST].tolist() == [0, 0, 70] and fields[3, :, COUNT].tolist() == [70, 0, 70]
    assert lora_table.scales[3].tolist() == [0.5, 0.0, 0.5]
    assert (lora_table.max_ranks, lora_table.max_part_ranks) == (256, 128)
    address = lora_table.entries.data_ptr()
    lora_table.put(1, None)
    assert not lora_table.entries[:3].any() and lora_table.entries[3].any() and lora_table.entries.data_ptr() == address


def test_what_fits() -> None:
    lora_table = table()
    assert lora_table.fits(adapter(slice(0, 16))) and lora_table.fits(adapter(SEGMENTS[1], SEGMENTS[0]))
    assert not lora_table.fits(adapter(slice(0, 16), SEGMENTS[0])), "twice"
    assert not lora_table.fits(adapter(slice(0, 4))), "half of a segment"
    good = adapter(SEGMENTS[0])
    for down in (good.down.half(), torch.randn(8, 2).T, torch.randn(17)[1:].view(2, 8)):
        assert not lora_table.fits(LowRank(down=down, parts=good.parts))


def test_definition() -> None:
    torch.manual_seed(1)
    lora_table, first, second = table(), adapter(slice(0, 16)), adapter(*SEGMENTS, rank=3)
    lora_table.put(1, first)
    lora_table.put(2, second)
    x, y = torch.randn(4, 8), torch.randn(4, 16)
    actual = y.clone()
    x[0] = torch.nan
    add_low_rank(x, actual, lora_table, torch.tensor([0, 1, 2, 3]))
    assert torch.equal(actual[0], y[0]) and torch.equal(actual[3], y[3])
    assert torch.allclose(actual[1], y[1] + 0.5 * x[1] @ first.down.T @ first.parts[0].up, atol=1e-5)
    for number, own in enumerate(SEGMENTS):
        inner = 0.5 * x[2] @ second.down[3 * number : 3 * number + 3].T
        assert torch.allclose(actual[2, own], y[2, own] + inner @ second.parts[number].up, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_once(dtype: torch.dtype) -> None:
    lora_table = LowRankTable(SEGMENTS, 8, slots=1, dtype=dtype, device=torch.device("cpu"))
    low_rank = adapter(slice(0, 16))
    part = low_rank.parts[0]
    half = LowRankPart(columns=part.columns, ranks=part.ranks, up=part.up.to(dtype), scale=0.5)
    lora_table.put(1, LowRank(down=low_rank.down.to(dtype), parts=(half,)))
    x, y = torch.randn(1, 8).to(dtype), torch.randn(1, 16).to(dtype)
    expected = y.double() + 0.5 * x.double() @ low_rank.down.to(dtype).double().T @ part.up.to(dtype).double()
    add_low_rank(x, y, lora_table, torch.ones(1, dtype=torch.int64))
    assert torch.equal(y, expected.float().to(dtype))
