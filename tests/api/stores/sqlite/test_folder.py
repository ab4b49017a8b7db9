"""Tests of the location of the storage folder and of its permissions."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sglang_plug import ConfigError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.stores.sqlite.folder import DEFAULT_FOLDER, check_owner, folder_of, make_private
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage

SOMEBODY = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert folder_of(None) == tmp_path / DEFAULT_FOLDER
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder_of(None) == tmp_path / "home" / ".local" / "state" / DEFAULT_FOLDER
    assert folder_of("~/x") == tmp_path / "home" / "x"


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="no home for uploaded files; set --file-storage-path"):
        folder_of(None)


async def test_an_existing_folder_and_its_files_become_private(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    files = storage.folder / "files"
    files.mkdir(parents=True)
    (files / "a").write_text("x")
    for path, mode in ((storage.folder, 0o755), (files, 0o777), (files / "a", 0o644)):
        path.chmod(mode)
    await storage.call(lambda store: None)
    assert [mode_of(path) for path in (storage.folder, files, files / "a")] == [0o700, 0o700, 0o600]
    assert "had mode 0755" in caplog.text
    assert all(mode_of(path) & 0o077 == 0 for path in storage.folder.rglob("*"))


@AS_ROOT
async def test_a_folder_of_another_user_is_refused(storage: SQLiteStore) -> None:
    storage.folder.mkdir(mode=0o777)
    os.chown(storage.folder, SOMEBODY, -1)
    with pytest.raises(ConfigError, match=f"belongs to user {SOMEBODY}, .*chown"):
        check_owner(storage.folder)
    with pytest.raises(ApiError) as refused:
        await Storage(storage).client_call(storage.check_room())
    assert refused.value.status == 503
    assert str(storage.folder) not in refused.value.message
    assert list(storage.folder.iterdir()) == []


@AS_ROOT
def test_a_link_of_another_user_is_refused(tmp_path: Path) -> None:
    """A symbolic link that another user owns could point to any folder of this user."""
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    make_private(tmp_path / "link")
    os.lchown(tmp_path / "link", SOMEBODY, -1)
    with pytest.raises(ConfigError, match="symbolic link"):
        make_private(tmp_path / "link")


def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "open" / "storage")
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "storage").mkdir(mode=0o700)
    for folder in (tmp_path / "open" / "storage", tmp_path / "link"):
        with pytest.raises(ConfigError, match="mode 0777"):
            check_owner(folder)
    (tmp_path / "open").chmod(0o1777)  # sticky, like /tmp: users cannot move files of others
    check_owner(tmp_path / "open" / "storage")


def test_a_folder_that_is_not_there_is_right(tmp_path: Path) -> None:
    check_owner(tmp_path / "missing" / "folder")
