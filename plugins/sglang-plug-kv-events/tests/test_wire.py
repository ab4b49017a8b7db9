"""The bytes of batches, read by decoders with the fields that vLLM and SGLang declare."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest
from sglang_plug_kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Scope
from sglang_plug_kv_events.wire import EventFormat

EVENTS: list[Event] = [
    AllBlocksCleared(),
    BlockStored([8, (1 << 63) - 1], 7, array("q", [5, 6, 7, 8]), Scope("poet", ("salt",))),
    BlockStored([9], None, array("q", [1, 2]), Scope()),
    BlockRemoved([8, 9]),
]


def batch_class(*, arrays: bool, stored: Any, removed: Any, ranked: bool) -> type[msgspec.Struct]:
    """Return the class of batches whose events have these fields."""
    options: dict[str, Any] = {"array_like": arrays}
    types = [
        msgspec.defstruct(name, fields, tag=name, **options)
        for name, fields in (("BlockStored", stored), ("BlockRemoved", removed), ("AllBlocksCleared", []))
    ]
    events: Any = list[types[0] | types[1] | types[2]]  # type: ignore[valid-type]
    rank: list[Any] = [("data_parallel_rank", int | None, None)] if ranked else []
    return msgspec.defstruct("Batch", [("ts", float), ("events", events), *rank], **options)


OLD_STORED = [
    ("block_hashes", list[int]),
    ("parent_block_hash", int | None),
    ("token_ids", list[int]),
    ("block_size", int),
    ("lora_id", int | None),
]
OLD_REMOVED = [("block_hashes", list[int])]
MEDIUM = [("medium", str | None)]
NAMED = [("lora_name", str | None), ("extra_keys", list[Any] | None, None)]


@pytest.mark.parametrize("ranked", [False, True])
def test_the_first_versions_read_arrays(ranked: bool) -> None:
    decoder = batch_class(arrays=True, stored=OLD_STORED, removed=OLD_REMOVED, ranked=ranked)
    batch: Any = msgspec.msgpack.decode(EventFormat("array", 2, "GPU", 3).encode(1.5, EVENTS), type=decoder)
    cleared, first, second, removed = batch.events
    assert type(cleared).__name__ == "AllBlocksCleared" and batch.ts == 1.5
    assert msgspec.structs.astuple(first) == ([8, (1 << 63) - 1], 7, [5, 6, 7, 8], 2, None)
    assert msgspec.structs.astuple(second) == ([9], None, [1, 2], 2, None)
    assert removed.block_hashes == [8, 9]
    assert not ranked or batch.data_parallel_rank == 3


@pytest.mark.parametrize("format", ["array", "map"])
def test_later_versions_read_medium_adapter_and_keys(format: str) -> None:
    decoder = batch_class(
        arrays=format == "array", stored=OLD_STORED + MEDIUM + NAMED, removed=OLD_REMOVED + MEDIUM, ranked=True
    )
    batch: Any = msgspec.msgpack.decode(EventFormat(format, 2, "CPU", 0).encode(1.5, EVENTS), type=decoder)
    _, first, second, removed = batch.events
    assert msgspec.structs.asdict(first) == {
        "block_hashes": [8, (1 << 63) - 1],
        "parent_block_hash": 7,
        "token_ids": [5, 6, 7, 8],
        "block_size": 2,
        "lora_id": None,
        "medium": "CPU",
        "lora_name": "poet",
        "extra_keys": [["salt"], ["salt"]],
    }
    assert (second.lora_name, second.extra_keys) == (None, None)
    assert (removed.block_hashes, removed.medium) == ([8, 9], "CPU")
    assert batch.data_parallel_rank == 0


def test_a_decoder_of_the_other_format_fails() -> None:
    decoder = batch_class(arrays=False, stored=OLD_STORED, removed=OLD_REMOVED, ranked=True)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(EventFormat("array", 2, "GPU", 0).encode(1.5, EVENTS), type=decoder)
