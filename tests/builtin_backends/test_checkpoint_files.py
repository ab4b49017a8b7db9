"""Checkpoint files: only regular files of a usual size are read."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_plug import Checkpoint, CheckpointRequest, ConfigError, TokenizerSource
from sglang_plug_backends.checkpoint_files import MAX_CONFIG, MAX_VOCABULARY, check_folder, read_file
from sglang_plug_backends.huggingface.checkpoint import open_checkpoint
from sglang_plug_backends.huggingface.tokenizer import load_tokenizer
from sglang_plug_backends.weights.safetensors import load_safetensors
from tests.e2e.document_models import demo


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def link_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the demo's checkpoint."""
    return Path(shutil.copytree(demo(), tmp_path / "model"))


@pytest.mark.parametrize(
    "make, kind",
    [(make_pipe, "a pipe"), (make_socket, "a socket"), (link_device, "a device"), (Path.mkdir, "a folder")],
)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json", "chat_template.jinja"]
)
def test_only_regular_files_are_opened(folder: Path, name: str, make: Callable[[Path], None], kind: str) -> None:
    file = folder / name
    file.unlink(missing_ok=True)
    make(file)
    with pytest.raises(ConfigError, match=f"{name} is {kind}, not a regular file"):
        open_checkpoint(CheckpointRequest(source=str(folder)))
    with pytest.raises(ConfigError, match=f"{name} is {kind}, not a regular file"):
        load_tokenizer(TokenizerSource(path=folder))


def test_files_in_folders_of_a_checkpoint_are_checked(folder: Path) -> None:
    (folder / "1_Pooling").mkdir()
    make_pipe(folder / "1_Pooling" / "config.json")
    with pytest.raises(ConfigError, match="1_Pooling/config.json is a pipe"):
        check_folder(folder)


def test_links_to_regular_files_are_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").rename(tmp_path / "blob")
    (folder / "config.json").symlink_to(tmp_path / "blob")
    assert open_checkpoint(CheckpointRequest(source=str(folder))).config.num_hidden_layers == 6


def test_a_pipe_that_comes_after_the_check_is_not_waited_for(tmp_path: Path) -> None:
    make_pipe(tmp_path / "model.safetensors")
    make_pipe(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="is a pipe"):
        list(load_safetensors(Checkpoint(source="", path=tmp_path, config=None), None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="is a pipe"):
        read_file(tmp_path / "config.json", 100)


@pytest.mark.parametrize("name, limit", [("config.json", MAX_CONFIG), ("tokenizer.json", MAX_VOCABULARY)])
def test_files_of_a_size_that_no_checkpoint_has(folder: Path, name: str, limit: int) -> None:
    with open(folder / name, "wb") as file:
        file.truncate(limit + 1)  # no blocks are written
    with pytest.raises(ConfigError, match=f"{name} has {limit + 1} bytes; the maximum is {limit}"):
        check_folder(folder)


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("1234")
    assert read_file(tmp_path / "a.json", 4) == b"1234"
    with pytest.raises(ConfigError, match="has 4 bytes"):
        read_file(tmp_path / "a.json", 3)
