"""Fixtures: an open database, and a store in a new folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sglang_plug import FileRecord, StoreContext
from sglang_plug_api.stores.sqlite.database import Database
from tests.api.storage_fixtures import batch_record, file_record, storage

__all__ = ["batch_record", "file_record", "storage"]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., Database]]:
    """Yield a function that opens the store of one database anew: ``open_store(**limits)``."""
    stores: list[Database] = []

    def start(*, max_files: int = 100, max_bytes: int = 10_000) -> Database:
        stores.append(Database(tmp_path / "test.sqlite3", StoreContext(max_files=max_files, max_bytes=max_bytes)))
        return stores[-1]

    yield start
    for store in stores:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., Database], file_record: Callable[..., FileRecord]) -> Database:
    """An open store with the file ``input``."""
    store = open_store()
    store.add_file(file_record("input"))
    return store
