"""Folders for sockets: short enough, and nobody else's."""

from __future__ import annotations

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_plug import ConfigError
from sglang_plug import private_folder as module
from sglang_plug.private_folder import private_folder


@pytest.fixture
def made() -> Iterator[list[Path]]:
    """Folders that are removed in the end."""
    found: list[Path] = []
    yield found
    for folder in found:
        shutil.rmtree(folder)


def test_in_the_temporary_folder_and_only_for_this_user(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        made.append(private_folder("mine-"))
        assert made[0].parent == Path(short) and made[0].name.startswith("mine-")
        assert made[0].stat().st_mode & 0o777 == 0o700
        made.clear()


def test_a_path_that_leaves_no_room_for_sockets_is_passed_by(
    made: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("é" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made.append(private_folder("mine-"))
    assert long not in made[0].parents
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(made[0] / "a-name-of-a-socket"))


def test_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    monkeypatch.setattr(module, "OTHERS", (str(tmp_path / "other"),))
    with pytest.raises(ConfigError, match="name another one with TMPDIR"):
        private_folder("mine-")
