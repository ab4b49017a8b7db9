"""Fixtures of the tests of batches and of stores: records, and a store in a new folder."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sglang_plug import BatchRecord, FileRecord, StoreContext
from sglang_plug_api.stores.sqlite.store import SQLiteStore

NOW = 1_700_000_000
ENDPOINT = "/v1/completions"


@pytest.fixture(scope="session")
def file_record() -> Callable[..., FileRecord]:
    """Return a function that makes the record of an input file of 10 bytes: ``file_record(id, **changes)``."""
    record = FileRecord(id="", purpose="batch", filename="in.jsonl", bytes=10, created_at=NOW)
    return lambda id, **changes: dataclasses.replace(record, id=id, **changes)


@pytest.fixture(scope="session")
def batch_record() -> Callable[..., BatchRecord]:
    """Return a function that makes the record of a batch of the file ``input``: ``batch_record(id, **changes)``."""
    record = BatchRecord(
        id="",
        model="demo",
        endpoint=ENDPOINT,
        input_file_id="input",
        completion_window="24h",
        created_at=NOW,
        expires_at=NOW * 2,
    )
    return lambda id="batch_1", **changes: dataclasses.replace(record, id=id, **changes)


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    """A SQLite store in a new folder."""
    store = SQLiteStore(StoreContext(folder=str(tmp_path / "storage"), max_bytes=100_000))
    yield store
    await store.close()
