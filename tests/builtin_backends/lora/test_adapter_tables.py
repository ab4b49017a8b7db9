"""The slots of adapters in the tables of a model's layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_plug import AdaptableLayer, LayerAdapter, LowRank, LowRankAdapter, LowRankPart, LowRankTable
from sglang_plug.ops.lora import add_low_rank
from sglang_plug_backends.lora.adapter_tables import AdapterTables, AddLowRank, segments_of
from sglang_plug_backends.lora.lora_batch import LoadedAdapter

LAYERS = [
    AdaptableLayer(name=name, size_in=8, size_out=12, parts={"a": slice(0, 8), "b": slice(8, 12), name: slice(0, 12)})
    for name in ("first", "second")
]


class Narrow(LowRankAdapter):
    def __init__(self, rank: int = 2, width: int = 12) -> None:
        part = LowRankPart(columns=slice(0, width), ranks=slice(0, rank), up=torch.ones(rank, width), scale=1.0)
        self._own = LowRank(down=torch.ones(rank, 8), parts=(part,))

    @property
    def low_rank(self) -> LowRank:
        return self._own

    def after(self, x: torch.Tensor, y: torch.Tensor) -> None:
        raise NotImplementedError


class Other(LayerAdapter):
    def after(self, x: torch.Tensor, y: torch.Tensor) -> None:
        raise NotImplementedError


def test_segments() -> None:
    parts = {"q": slice(0, 8), "k": slice(8, 12), "v": slice(12, 16), "qkv": slice(0, 16)}
    assert segments_of(parts) == [slice(0, 8), slice(8, 12), slice(12, 16)]


def make_tables(slots: int = 2, add: AddLowRank = add_low_rank) -> AdapterTables:
    return AdapterTables(add, LAYERS, dtype=torch.float32, device=torch.device("cpu"), slots=slots)


def added(tables: AdapterTables, layer: str, *slots: int) -> list[float]:
    y = torch.zeros(len(slots), 12)
    tables.add(layer, torch.ones(len(slots), 8), y, torch.tensor(slots))
    assert torch.equal(y, y[:, :1].expand(-1, 12))
    return y[:, 0].tolist()


def test_slots_are_freed() -> None:
    applied: list[LowRankTable] = []

    def add(x: torch.Tensor, y: torch.Tensor, table: LowRankTable, which: torch.Tensor) -> None:
        applied.append(table)
        add_low_rank(x, y, table, which)

    tables = make_tables(add=add)
    layers: list[dict[str, Any]] = [{"first": Narrow(2)}, {"first": Narrow(3), "second": Narrow(1)}]
    slots = [tables.put(str(number), layer) for number, layer in enumerate(layers)]
    assert slots == [1, 2] and tables.put("third", layers[0]) == 0
    assert added(tables, "first", 0, 1, 2) == [0, 16, 24] and added(tables, "second", 1, 2) == [0, 8]
    loaded = LoadedAdapter("one", "", "", {}, slot=2)
    tables.keep(2, loaded)
    del loaded
    assert added(tables, "first", 1, 2) == [16, 0] and added(tables, "second", 2) == [0]
    assert tables.put("fourth", {"second": Narrow(5)}) == 2
    assert added(tables, "second", 2) == [40]
    assert added(tables, "first", 1) == [16]
    assert not applied[-1].entries[2].any(), "what was there before is gone from the device, too"


class Lost(torch.Tensor):
    """A tensor that raises an out-of-memory error when it is written into a table."""

    @property
    def itemsize(self) -> int:
        raise RuntimeError("out of memory")


def test_a_slot_is_freed_if_the_tables_cannot_be_written() -> None:
    tables, broken = make_tables(slots=1), Narrow(5)
    broken.low_rank.parts[0].up.__class__ = Lost  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="out of memory"):
        tables.put("one", {"first": Narrow(100), "second": broken})
    assert tables.grown == 1, "graphs that were captured before have no room for the ranks"
    assert tables.put("two", {"first": Narrow(2)}) == 1
    assert added(tables, "first", 1) == [16] and added(tables, "second", 1) == [0]


@pytest.mark.parametrize(
    "layers", [{"first": Narrow(), "second": Other()}, {"second": Narrow(width=4)}], ids=["kind", "half"]
)
def test_what_kernels_cannot_apply(layers: dict[str, LayerAdapter]) -> None:
    tables = make_tables()
    assert tables.put("one", layers) == 0
    assert tables.put("two", {"first": Narrow()}) == 1


def test_more_ranks_than_there_was_room_for() -> None:
    tables = make_tables()
    tables.put("one", {"first": Narrow(64)})
    assert tables.grown == 0
    tables.put("two", {"first": Narrow(65)})
    assert tables.grown == 1
