"""The folder: who may read it, what is left of killed processes, who runs batches."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.batches.storage import DEFAULT_FOLDER, DurableFile, RunnerLock, Storage, folder_of, refusal
from sglang_plug_api.batches.store import StorageFull, UnknownId
from sglang_plug_api.config import StorageConfig
from sglang_plug_api.errors import ApiError


async def test_nothing_is_made_before_it_is_needed(storage: Storage) -> None:
    assert not storage.exists
    assert not storage.folder.exists()
    await storage.call(lambda store: store.file_ids())
    assert storage.exists


async def test_only_the_owner_may_read(storage: Storage) -> None:
    await storage.call(lambda store: store.file_ids())
    file = DurableFile(storage.path("a"))
    file.close()
    for path in (storage.folder, *storage.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


async def test_what_a_killed_process_left_behind_goes(
    storage: Storage, file_record: Callable[..., Any], tmp_path: Path
) -> None:
    await storage.call(lambda store: store.add_file(file_record("known")))
    for name in ("known", "left", "fresh"):
        storage.path(name).write_text("x")
        if name != "fresh":
            os.utime(storage.path(name), (0, 0))
    await storage.close()
    await storage.call(lambda store: None)
    assert sorted(path.name for path in storage.path("x").parent.iterdir()) == ["fresh", "known"]


async def test_a_table_of_another_version_is_refused(storage: Storage) -> None:
    await storage.call(lambda store: None)
    await storage.close()
    with sqlite3.connect(storage.folder / "batches.sqlite3") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(sqlite3.DatabaseError, match="another version"):
        await storage.call(lambda store: None)
    with pytest.raises(ApiError) as refused:
        await storage.ask(lambda store: None)
    assert refused.value.status == 503


async def test_a_folder_that_cannot_be_made_is_503_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    storage = Storage(StorageConfig(file_storage_path=str(tmp_path / "file" / "folder")))
    with pytest.raises(ApiError) as refused:
        await storage.ask(lambda store: None)
    assert refused.value.status == 503
    assert str(tmp_path) not in refused.value.message
    await storage.close()


def test_refusals() -> None:
    assert refusal(UnknownId("x")).status == 404
    assert refusal(StorageFull("full")).status == 413
    assert len(refusal(UnknownId("x" * 5000)).message) < 300


def test_one_process_runs_a_model(tmp_path: Path) -> None:
    first, second, other = RunnerLock(tmp_path, "a"), RunnerLock(tmp_path, "a"), RunnerLock(tmp_path, "../b")
    assert first.acquire() and first.acquire() and other.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    for lock in (second, other):
        lock.release()


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folder_of(StorageConfig()) == tmp_path / DEFAULT_FOLDER
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder_of(StorageConfig()) == tmp_path / "home" / ".local" / "state" / DEFAULT_FOLDER
    assert folder_of(StorageConfig(file_storage_path="~/x")) == tmp_path / "home" / "x"


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="no home for uploaded files; set --file-storage-path"):
        folder_of(StorageConfig())


def test_a_discarded_file_is_gone(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "a")
    file.write(b"text")
    file.discard()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileExistsError):
        (tmp_path / "b").write_text("")
        DurableFile(tmp_path / "b")
