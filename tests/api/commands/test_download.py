"""``download`` fetches the files that serving needs from a hub, here one in this process, and each only once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import sglang_plug_models.demo
from sglang_plug.__main__ import main

(DEMO,) = (file.parent for file in Path(sglang_plug_models.demo.__file__).parent.glob("*/config.json"))
COMMIT = "c" * 40
TIMEOUT = 120
UNNEEDED = {"pytorch_model.bin": b"pickled", "notes.pdf": b"long"}


def cut_offset(content: bytes) -> int:
    """Return the length of a truncated answer: more than the first 10 MB, which the hub's library writes at once."""
    return len(content) * 3 // 4


class Hub(BaseHTTPRequestHandler):
    """A hub with the demo model as ``org/demo``, at the revisions ``main`` and ``v2``."""

    protocol_version = "HTTP/1.1"
    files = {**{file.name: file.read_bytes() for file in DEMO.iterdir() if file.is_file()}, **UNNEEDED}
    files["model.safetensors"] += bytes(10 << 20)
    sent: list[str] = []
    ranges: list[str] = []
    cut: set[str] = set()
    """Files whose first answer ends in the middle."""
    held: set[str] = set()
    """Files whose answers stop in the middle until ``release`` is set."""
    release = threading.Event()

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Suppress the log."""

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path in ("/api/models/org/demo/revision/main", "/api/models/org/demo/revision/v2"):
            siblings = [{"rfilename": file} for file in self.files]
            self._send(json.dumps({"id": "org/demo", "sha": COMMIT, "siblings": siblings}).encode())
        elif path == f"/api/models/org/demo/tree/{COMMIT}":
            sizes = {file: len(content) for file, content in self.files.items()}
            tree = [{"type": "file", "path": file, "size": size, "oid": "0" * 40} for file, size in sizes.items()]
            self._send(json.dumps(tree).encode())
        elif path.startswith(f"/org/demo/resolve/{COMMIT}/") and name in self.files:
            if self.command == "GET":
                self.sent.append(name)
            self._send(self.files[name], name)
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes, name: str = "") -> None:
        start = 0
        if requested_range := self.headers.get("Range"):
            self.ranges.append(requested_range)
            start = int(requested_range.removeprefix("bytes=").rstrip("-"))
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command != "GET":
            return
        if name in self.cut | self.held:
            self.wfile.write(content[: cut_offset(content)])
            self.wfile.flush()
            if name in self.held:
                self.release.wait(TIMEOUT)
            self.cut.discard(name)
            self.close_connection = True
            return
        self.wfile.write(content[start:])


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of the hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    for record in (Hub.sent, Hub.ranges, Hub.cut, Hub.held):
        record.clear()
    Hub.release.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def download(hub: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(hub, home), capture_output=True, text=True, timeout=TIMEOUT
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sglang_plug", "download", *arguments]


def environment(hub: str, home: Path) -> dict[str, str]:
    return {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}


def test_only_the_needed_files_come_and_only_once(hub: str, tmp_path: Path) -> None:
    first = download(hub, tmp_path, "org/demo", "--revision", "v2")
    assert first.returncode == 0, first.stderr
    folder = Path(first.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]
    assert not set(UNNEEDED) & set(Hub.sent)
    assert "\r" not in first.stderr
    count = len(Hub.sent)
    again = download(hub, tmp_path, "org/demo", "--revision", "v2")
    assert (again.returncode, again.stdout, len(Hub.sent)) == (0, first.stdout, count)


def test_a_lost_connection_goes_on_in_the_middle_of_a_file(hub: str, tmp_path: Path) -> None:
    Hub.cut.add("model.safetensors")
    done = download(hub, tmp_path, "org/demo")
    assert done.returncode == 0, done.stderr
    content = Hub.files["model.safetensors"]
    (requested_range,) = Hub.ranges
    assert 0 < int(requested_range.removeprefix("bytes=").rstrip("-")) <= cut_offset(content)
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == content


def test_after_a_kill_only_the_files_that_were_not_complete_are_fetched(hub: str, tmp_path: Path) -> None:
    Hub.held.add("model.safetensors")
    process = subprocess.Popen(command("org/demo"), env=environment(hub, tmp_path), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + TIMEOUT
    while len(list(tmp_path.rglob("snapshots/*/*.json"))) < 2 or "model.safetensors" not in Hub.sent:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    complete = {path.name for path in tmp_path.rglob("snapshots/*/*.json")}
    process.kill()
    process.wait()
    Hub.release.set()
    Hub.held.clear()
    Hub.sent.clear()
    done = download(hub, tmp_path, "org/demo")
    assert done.returncode == 0, done.stderr
    assert "model.safetensors" in Hub.sent and not complete & set(Hub.sent)
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == Hub.files["model.safetensors"]


def test_the_configuration_alone(hub: str, tmp_path: Path) -> None:
    done = download(hub, tmp_path, "org/demo", "--config-only")
    assert done.returncode == 0, done.stderr
    assert "config.json" in Hub.sent and "model.safetensors" not in Hub.sent


def test_an_unknown_model_is_an_error(hub: str, tmp_path: Path) -> None:
    done = download(hub, tmp_path, "org/nothing")
    assert done.returncode == 2
    assert "cannot find model 'org/nothing'" in done.stderr and "Traceback" not in done.stderr


def test_a_folder_is_there_already(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", str(DEMO)]) == 0
    assert capsys.readouterr().out.strip() == str(DEMO)
