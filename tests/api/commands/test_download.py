"""``download`` fetches what serving needs from a hub, here one in this process, and only once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import sglang_plug_models.demo
from sglang_plug.__main__ import main

(DEMO,) = (file.parent for file in Path(sglang_plug_models.demo.__file__).parent.glob("*/config.json"))
COMMIT = "c" * 40
UNNEEDED = {"pytorch_model.bin": b"pickled", "notes.pdf": b"long"}


class Hub(BaseHTTPRequestHandler):
    """A hub with the demo model as ``org/demo``, at the revisions ``main`` and ``v2``."""

    protocol_version = "HTTP/1.1"
    files = {**{file.name: file.read_bytes() for file in DEMO.iterdir() if file.is_file()}, **UNNEEDED}
    sent: list[str] = []

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

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
            self._send(self.files[name])
        else:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub() -> Iterator[str]:
    """The hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.sent.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def download(hub: str, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    program = [sys.executable, "-m", "sglang_plug", "download", *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)


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
