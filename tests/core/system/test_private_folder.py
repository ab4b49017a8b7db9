"""Temporary folders have short paths, are private, and are removed even if their process was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sglang_plug.system.private_folder import LOCK, remove_abandoned, scratch_folder

OWNER = """
import sys
from pathlib import Path
from sglang_plug.system.private_folder import scratch_folder
print(scratch_folder(Path(sys.argv[1]), "sglang-plug-").path, flush=True)
sys.stdin.read()
"""

PRIVATE = """
import sys
from sglang_plug.system.private_folder import private_folder
with private_folder("mine-") as path:
    print(path, flush=True)
    sys.stdin.read()
"""

NOWHERE = """
from sglang_plug import ConfigError
from sglang_plug.system.private_folder import private_folder
try:
    private_folder("mine-", others=("/missing", "/dev/null"))
except ConfigError as error:
    print(error)
"""


@contextmanager
def folder_made_with(temporary: Path) -> Iterator[Path]:
    """Return a private folder that another process, whose temporary folder is ``temporary``, created and closed."""
    command, environment = [sys.executable, "-c", PRIVATE], {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield folder_of(process)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start another process that creates a folder in ``tmp_path`` and waits."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield process
        process.kill()


def folder_of(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_in_the_temporary_folder_and_only_for_this_user() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        with folder_made_with(Path(short)) as path:
            assert path.parent == Path(short) and path.name.startswith("mine-")
            assert path.stat().st_mode & 0o777 == 0o700
        assert not path.exists()


def test_a_path_that_leaves_no_room_for_sockets_is_passed_by(tmp_path: Path) -> None:
    long = tmp_path / ("é" * 60)
    long.mkdir()
    with folder_made_with(long) as path, socket.socket(socket.AF_UNIX) as listener:
        assert long not in path.parents
        listener.bind(str(path / "a-name-of-a-socket"))


def test_nowhere(tmp_path: Path) -> None:
    long = tmp_path / ("long" * 60)
    long.mkdir()
    command, environment = [sys.executable, "-c", NOWHERE], {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert "nor in /missing or /dev/null; name another one with TMPDIR" in done.stdout


def test_the_folder_of_a_killed_process_is_removed(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    folder = folder_of(owner)
    (folder / "requests").touch()
    owner.kill()
    owner.wait()
    assert folder.exists()
    with scratch_folder(tmp_path, "sglang-plug-ranks-", family="sglang-plug-") as fresh:
        assert list(tmp_path.iterdir()) == [fresh]


def test_the_folder_of_a_living_process_stays(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    theirs = folder_of(owner)
    with scratch_folder(tmp_path, "sglang-plug-") as ours:
        remove_abandoned(tmp_path, "sglang-plug-")
        assert {*tmp_path.iterdir()} == {theirs, ours}


def test_what_is_not_certainly_abandoned_stays(tmp_path: Path) -> None:
    without_lock, target = tmp_path / "sglang-plug-a", tmp_path / "elsewhere"
    for folder in (without_lock, target):
        folder.mkdir()
    (target / LOCK).touch()
    (tmp_path / "sglang-plug-link").symlink_to(target)
    (tmp_path / "sglang-plug-file").touch()
    before = {*tmp_path.rglob("*")}
    remove_abandoned(tmp_path, "sglang-plug-")
    remove_abandoned(tmp_path / "missing", "sglang-plug-")
    assert {*tmp_path.rglob("*")} == before


def test_processes_that_start_together_do_not_remove_each_others_folders(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owners = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    try:
        folders = [folder_of(owner) for owner in owners]
        assert len({*folders}) == 6 and all((folder / LOCK).exists() for folder in folders)
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()
