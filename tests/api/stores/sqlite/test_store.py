"""Tests of the storage folder: permissions, remains of killed processes, and the lock for running batches."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import StorageBroken, StoreContext
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.stores.sqlite.contents import DurableFile
from sglang_plug_api.stores.sqlite.runner_lock import RunnerLock
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage


async def test_nothing_is_made_before_it_is_needed(storage: SQLiteStore) -> None:
    assert not storage.exists
    assert not storage.folder.exists()
    await storage.call(lambda store: store.file_ids())
    assert storage.exists


async def test_only_the_owner_may_read(storage: SQLiteStore) -> None:
    await storage.call(lambda store: store.file_ids())
    file = DurableFile(storage.path("a"))
    file.close()
    for path in (storage.folder, *storage.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def age(storage: SQLiteStore, *names: str) -> None:
    """Write files with some content that are a day old."""
    for name in names:
        storage.path(name).write_text("x")
        os.utime(storage.path(name), (time.time() - 86400,) * 2)


async def test_what_a_killed_process_left_behind_goes(storage: SQLiteStore, file_record: Callable[..., Any]) -> None:
    await storage.call(lambda store: store.add_file(file_record("known")))
    age(storage, "known", "left")
    storage.path("fresh").write_text("x")
    await storage.close()
    with contextlib.closing(sqlite3.connect(storage.folder / "batches.sqlite3")) as database, database:
        database.execute("UPDATE database SET created_at = 5")
    await storage.call(lambda store: None)
    assert sorted(path.name for path in storage.path("x").parent.iterdir()) == ["fresh", "known"]


async def test_files_of_a_database_that_was_deleted_are_kept(
    storage: SQLiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Files without a record in a new database are kept, because a backup of the database may refer to them."""
    await storage.call(lambda store: None)
    age(storage, "a", "b")
    await storage.close()
    (storage.folder / "batches.sqlite3").unlink()
    for _ in range(2):  # the second time, the new database is an existing one
        await storage.call(lambda store: None)
        await storage.close()
    assert len(list(storage.path("x").parent.iterdir())) == 2
    assert "2 files that are older than batches.sqlite3" in caplog.text


async def test_a_table_of_another_version_is_refused(storage: SQLiteStore) -> None:
    await storage.call(lambda store: None)
    await storage.close()
    with sqlite3.connect(storage.folder / "batches.sqlite3") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StorageBroken, match="another version"):
        await storage.call(lambda store: None)
    with pytest.raises(ApiError) as refused:
        await Storage(storage).client_call(storage.check_room())
    assert refused.value.status == 503


async def test_a_folder_that_cannot_be_made_is_503_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = Storage(SQLiteStore(StoreContext(folder=str(tmp_path / "file" / "folder"))))
    with pytest.raises(ApiError) as refused:
        await storage.client_call(storage.store.check_room())
    assert refused.value.status == 503
    assert str(tmp_path) not in refused.value.message
    await storage.close()


def test_one_process_runs_a_model(tmp_path: Path) -> None:
    first, second, other = RunnerLock(tmp_path, "a"), RunnerLock(tmp_path, "a"), RunnerLock(tmp_path, "../b")
    assert first.acquire() and first.acquire() and other.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    for lock in (second, other):
        lock.release()


def test_a_lock_whose_file_was_deleted_is_held_by_one_process_again(tmp_path: Path) -> None:
    first, second = RunnerLock(tmp_path, "a"), RunnerLock(tmp_path, "a")
    assert first.acquire()
    (held,) = tmp_path.iterdir()
    held.unlink()
    assert second.acquire()
    assert not first.acquire()
    second.release()
    assert first.acquire()
    first.release()


def test_a_discarded_file_is_gone(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "a")
    file.write(b"text")
    file.discard()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileExistsError):
        (tmp_path / "b").write_text("")
        DurableFile(tmp_path / "b")
