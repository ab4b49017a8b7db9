"""Tests that files and batches survive concurrent use of the storage folder, and that damage to it is reported."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from .servers import NO_GRAMMARS, until

DATABASE = "batches.sqlite3"
COUNT = "SELECT COUNT(*) FROM files"
READER = f"import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); print(*d.execute('{COUNT}').fetchone()); d.close()"


def upload(server: Any, content: bytes = b"{}\n") -> str:
    answer = server.post("/v1/files", files={"file": ("a.jsonl", content)}, data={"purpose": "batch"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def start_batch(server: Any, *prompts: str) -> str:
    lines = [
        {"custom_id": text, "method": "POST", "url": "/v1/completions", "body": {"prompt": text, "max_tokens": 2}}
        for text in prompts
    ]
    file = upload(server, "\n".join(map(json.dumps, lines)).encode())
    body = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = server.post("/v1/batches", body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def ids(server: Any, kind: str) -> set[str]:
    return {item["id"] for item in server.get(f"/v1/{kind}").json()["data"]}


def read_with(command: Sequence[str]) -> int:
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of temporary files for the servers of a test; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def test_nothing_accepted_is_lost_when_others_use_the_folder(launch: Any, tmp_path: Path, temporary: Path) -> None:
    """Files and batches survive a second server, programs that read the database, and a kill of the server.

    The next server also removes the temporary folder that the killed one left behind.
    """
    folder = tmp_path / "storage"
    flags = ("--file-storage-path", str(folder), *NO_GRAMMARS)
    server = launch(*flags)
    files, batches = {upload(server)}, {start_batch(server, "one")}
    commands = [[sys.executable, "-c", READER, str(folder / DATABASE)]]
    if binary := shutil.which("sqlite3"):
        commands.append([binary, str(folder / DATABASE), COUNT])
    for command in commands:
        assert read_with(command) >= len(files)
        files.add(upload(server))
    second = launch(*flags)
    assert ids(second, "files") >= files
    second.signal(signal.SIGTERM)
    assert second.exit_code() == 0
    files.add(upload(server))
    batches.add(start_batch(server, "two", "three"))
    (storage_folder,) = temporary.glob("sglang-plug-*")
    server.signal(signal.SIGKILL)
    server.exit_code()
    server.wait_gone()
    server = launch(*flags)
    assert not storage_folder.exists()
    assert ids(server, "files") >= files
    assert ids(server, "batches") == batches
    for id in files:
        assert server.get(f"/v1/files/{id}/content").content == b"{}\n"
    if sys.platform == "linux":
        check_full_disk(server, folder)
    check_accident(server, folder)


def check_accident(server: Any, folder: Path) -> None:
    """Check that files and batches are refused after the database was deleted, and that generation still works."""
    (folder / DATABASE).unlink()
    refused = server.post("/v1/files", files={"file": ("a.jsonl", b"{}\n")}, data={"purpose": "batch"})
    for answer in (refused, server.get("/v1/files"), server.get("/v1/batches")):
        assert answer.status_code == 503
        assert f"{DATABASE} was deleted while the server was running" in answer.json()["error"]["message"]
    assert server.get("/health").status_code == 200
    assert server.generate({"text": "Hi", "sampling_params": {"max_new_tokens": 1}})["text"] is not None
    assert DATABASE in server.info()["file_storage"]["problem"]
    assert server.log.count("the file storage is broken") == 1


def check_full_disk(server: Any, folder: Path) -> None:
    """Check that a full disk is reported, and leaves no partial file. Only Linux can limit another process."""
    import resource

    def all_batches_are_over() -> bool:
        return {batch["status"] for batch in server.get("/v1/batches").json()["data"]} == {"completed"}

    until(all_batches_are_over, "nothing else is stored")
    kept = {path.name for path in (folder / "files").iterdir()}
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (10_000, limits[1]))
    refused = server.post("/v1/files", files={"file": ("a", b"x" * 50_000)}, data={"purpose": "batch"})
    assert refused.status_code == 503
    assert "disk of the server's file storage is full" in refused.json()["error"]["message"]
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    assert {path.name for path in (folder / "files").iterdir()} == kept
    assert upload(server) in ids(server, "files")
