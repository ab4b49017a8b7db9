"""A store, a storage folder, and batches to put there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_plug_api.batches.records import BatchRecord, FileRecord
from sglang_plug_api.batches.storage import DurableFile, Storage
from sglang_plug_api.batches.store import Store
from sglang_plug_api.options.config import StorageConfig

NOW = 1_700_000_000
ENDPOINT = "/v1/completions"


@pytest.fixture(scope="session")
def file_record() -> Callable[..., FileRecord]:
    """``file_record(id, **changes)``: an input file of 10 bytes."""
    record = FileRecord(id="", purpose="batch", filename="in.jsonl", bytes=10, created_at=NOW)
    return lambda id, **changes: dataclasses.replace(record, id=id, **changes)


@pytest.fixture(scope="session")
def batch_record() -> Callable[..., BatchRecord]:
    """``batch_record(id, **changes)``: a batch of the file ``input``."""
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


@pytest.fixture(scope="session")
def request_line() -> Callable[..., dict[str, Any]]:
    """``request_line(number, **changes)``: one line of an input file."""

    def make(number: int, **changes: Any) -> dict[str, Any]:
        body = {"prompt": f"prompt {number}"}
        return {"custom_id": f"line-{number}", "method": "POST", "url": ENDPOINT, "body": body, **changes}

    return make


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """``open_store(**limits)``: the store of one database, opened again at each call."""
    stores: list[Store] = []

    def start(*, max_files: int = 100, max_bytes: int = 10_000) -> Store:
        stores.append(Store(tmp_path / "test.sqlite3", max_files=max_files, max_bytes=max_bytes))
        return stores[-1]

    yield start
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Store], file_record: Callable[..., FileRecord]) -> Store:
    """A store with the file ``input``."""
    store = open_store()
    store.add_file(file_record("input"))
    return store


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    """A storage folder of its own."""
    storage = Storage(StorageConfig(file_storage_path=str(tmp_path / "storage"), max_storage_bytes=100_000))
    yield storage
    await storage.close()


@pytest.fixture
def add_input(storage: Storage, file_record: Callable[..., FileRecord]) -> Callable[..., Awaitable[None]]:
    """``await add_input(lines)``: store the file ``input``."""

    async def add(lines: list[Any]) -> None:
        await storage.call(lambda store: None)
        file = DurableFile(storage.path("input"))
        file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
        file.close()
        await storage.call(lambda store: store.add_file(file_record("input", bytes=file.size)))

    return add
