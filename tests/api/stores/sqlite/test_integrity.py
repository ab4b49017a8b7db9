"""Tests of a database that is deleted, replaced, emptied or overwritten while it is open, and of its lock."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import StorageBroken
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage

DATABASE = "batches.sqlite3"
OPEN_AND_CLOSE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1])
print(database.execute("SELECT COUNT(*) FROM files").fetchone()[0])
database.close()
"""
Make = Callable[..., Any]


def deleted(folder: Path) -> None:
    (folder / DATABASE).unlink()


def replaced(folder: Path) -> None:
    shutil.copy(folder / DATABASE, folder / "copy")
    (folder / "copy").rename(folder / DATABASE)


def emptied(folder: Path) -> None:
    os.truncate(folder / DATABASE, 0)


def shortened(folder: Path) -> None:
    os.truncate(folder / DATABASE, 5000)


def overwritten(folder: Path) -> None:
    with (folder / DATABASE).open("r+b") as file:
        file.write(os.urandom((folder / DATABASE).stat().st_size))


def without_log(folder: Path) -> None:
    (folder / f"{DATABASE}-wal").unlink()


def without_index(folder: Path) -> None:
    (folder / f"{DATABASE}-shm").unlink()


def folder_removed(folder: Path) -> None:
    shutil.rmtree(folder)


ACCIDENTS = (deleted, replaced, emptied, shortened, overwritten, without_log, without_index, folder_removed)


async def checkpoint(storage: SQLiteStore) -> None:
    """Move everything from the write-ahead log into the database file, as SQLite does from time to time."""

    def other_connection(_store: Any) -> None:
        database = sqlite3.connect(storage.folder / DATABASE)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        database.close()

    await storage.call(other_connection)
    await storage.call(lambda store: None)


@pytest.mark.parametrize("accident", ACCIDENTS)
async def test_what_is_stored_after_an_accident_is_refused(
    storage: SQLiteStore, file_record: Make, caplog: pytest.LogCaptureFixture, accident: Callable[[Path], None]
) -> None:
    await storage.call(lambda store: store.add_file(file_record("before")))
    await checkpoint(storage)
    accident(storage.folder)
    server = Storage(storage)
    for attempt in range(3):
        with pytest.raises(ApiError) as refused:
            await server.client_call(storage.add_file(file_record(f"after-{attempt}")))
        assert refused.value.status == 503
        assert DATABASE in refused.value.message
        assert str(storage.folder) not in refused.value.message
    (critical,) = [
        record for record in caplog.records if record.levelno == logging.CRITICAL
    ]  # logged once, not at each request
    assert str(storage.folder) in critical.getMessage()
    assert storage.exists
    assert server.status()["problem"]


async def test_an_accident_during_a_change_does_not_let_it_succeed(storage: SQLiteStore, file_record: Make) -> None:
    await storage.call(lambda store: None)

    def change(store: Any) -> None:
        without_log(storage.folder)
        store.add_file(file_record("lost"))

    with pytest.raises(StorageBroken, match="was deleted"):
        await storage.call(change)


async def test_a_file_that_is_put_back_is_used_again(storage: SQLiteStore, file_record: Make) -> None:
    await storage.call(lambda store: store.add_file(file_record("a")))
    path = storage.folder / DATABASE
    path.rename(storage.folder / "elsewhere")
    with pytest.raises(StorageBroken):
        await storage.call(lambda store: store.file_ids())
    (storage.folder / "elsewhere").rename(path)
    assert await storage.call(lambda store: store.file_ids()) == {"a"}
    assert storage.is_open


async def test_a_backup_that_is_copied_over_the_open_database_is_not_trusted(
    storage: SQLiteStore, file_record: Make, tmp_path: Path
) -> None:
    """A damaged database stays refused after a backup was copied over it, because the connection caches old pages."""
    await storage.call(lambda store: store.add_file(file_record("a")))
    await checkpoint(storage)
    shutil.copy(storage.folder / DATABASE, tmp_path / "backup")
    overwritten(storage.folder)
    with pytest.raises(StorageBroken):
        await storage.call(lambda store: store.file_ids())
    shutil.copyfile(tmp_path / "backup", storage.folder / DATABASE)
    with pytest.raises(StorageBroken):
        await storage.call(lambda store: store.file_ids())


async def test_a_server_that_starts_with_a_damaged_database(storage: SQLiteStore) -> None:
    await storage.call(lambda store: None)
    await storage.close()
    overwritten(storage.folder)
    with pytest.raises(StorageBroken, match="is damaged"):
        await storage.call(lambda store: None)


async def test_checkpoints_are_not_taken_for_damage(storage: SQLiteStore, file_record: Make) -> None:
    for number in range(3):
        await storage.call(lambda store, number=number: store.add_file(file_record(f"file-{number}")))  # type: ignore[misc]
        await checkpoint(storage)
    assert len(await storage.call(lambda store: store.file_ids())) == 3


async def test_another_process_does_not_take_the_log_away(storage: SQLiteStore, file_record: Make) -> None:
    """Another process that closes the database does not delete the write-ahead log, which this process still uses."""
    await storage.call(lambda store: store.add_file(file_record("first")))
    for count in (1, 2, 3):
        command = [sys.executable, "-c", OPEN_AND_CLOSE, str(storage.folder / DATABASE)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"{count}\n"
        assert (storage.folder / f"{DATABASE}-wal").exists()
        await storage.call(lambda store, count=count: store.add_file(file_record(f"after-{count}")))  # type: ignore[misc]


async def test_a_full_disk_is_told_and_passes(storage: SQLiteStore, file_record: Make) -> None:
    await storage.call(lambda store: store.add_file(file_record("before")))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((storage.folder / f"{DATABASE}-wal").stat().st_size, hard))
    try:
        with pytest.raises(ApiError) as refused:
            await Storage(storage).client_call(storage.add_file(file_record("x", filename="y" * 20_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert refused.value.status == 503
    await storage.call(lambda store: store.add_file(file_record("after")))
    assert await storage.call(lambda store: store.file_ids()) == {"before", "after"}
