"""Requests may read files below the configured folder, but nothing that symbolic links or ``..`` lead to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sglang_plug import ConfigError, MediaError
from sglang_plug_api.multimodal.local_files import LocalFiles

BODY = b"what the file holds"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file, next to a file that must not be read."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    inside = tmp_path / "images"
    (inside / "deep er").mkdir(parents=True)
    (inside / "deep er" / "a#.png").write_bytes(BODY)
    (inside / "link.png").symlink_to(tmp_path / "secret.png")
    (inside / "up").symlink_to(tmp_path)
    (inside / "own.png").symlink_to(inside / "deep er" / "a#.png")
    os.mkfifo(inside / "pipe")
    return inside


def test_a_file(folder: Path) -> None:
    files = LocalFiles(str(folder))
    for start in ("file://", "FILE://", "file://localhost"):
        assert files.read(f"{start}{folder}/deep%20er/a%23.png", 100) == BODY
    assert files.read(f"file://{folder}/./deep%20er//a%23.png", len(BODY)) == BODY
    with pytest.raises(MediaError, match="more than 18 bytes"):
        files.read(f"file://{folder}/deep%20er/a%23.png", len(BODY) - 1)


@pytest.mark.parametrize(
    "path, words",
    [
        ("/../secret.png", "is not in the folder"),
        ("/%2e%2e/secret.png", "is not in the folder"),
        ("/deep%20er/../../secret.png", "is not in the folder"),
        ("2/a.png", "is not in the folder"),
        ("/link.png", "a link stands in its way"),
        ("/own.png", "a link stands in its way"),
        ("/up/secret.png", "a link stands in its way"),
        ("/none.png", "no file is there"),
        ("/deep%20er/a%23.png/x", "no file is there"),
        ("/deep%20er", "it is not a file"),
        ("", "it is not a file"),
        ("/pipe", "it is not a file"),
        ("/a%00.png", "is not of the form"),
        ("/a.png?x", "is not of the form"),
        ("/%ff.png", "is not a valid file address"),
        ("/" + "a" * 300, "no file is there"),
        ("/" + "a/" * 8000, "at most 8192 characters"),
    ],
)
def test_what_is_refused(folder: Path, path: str, words: str) -> None:
    with pytest.raises(MediaError, match=words) as caught:
        LocalFiles(str(folder)).read(f"file://{folder}{path}", 100)
    assert "secret" not in str(caught.value).replace("secret.png", "")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "file://etc/passwd", "file://evil.test/a", "file:////etc/x"])
def test_other_locations(folder: Path, address: str) -> None:
    with pytest.raises(MediaError, match="is not in the folder|is not of the form"):
        LocalFiles(str(folder)).read(address, 100)


def test_folders(folder: Path) -> None:
    assert LocalFiles(None).is_empty and not LocalFiles(str(folder)).is_empty
    with pytest.raises(ConfigError, match="--allowed-local-media-path '.*none' is not a folder"):
        LocalFiles(str(folder / "none"))
