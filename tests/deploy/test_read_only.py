"""The server runs with only the writable folders of the image, where everything else is mounted read-only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_image import variables

FOLDERS = ("state", "models", "tmp")
PREPARE = """
mount --make-rprivate /
for folder in "$1" "$2" "$3"; do mount -t tmpfs tmpfs "$folder"; done
mount -o remount,bind,ro /
cd "$1"
shift 3
exec "$@"
"""
"""Script that mounts the folders, makes the root file system read-only, and executes its remaining arguments."""
READY = " at http://"


def inside(folder: Path, *command: str) -> list[str]:
    """Return the command line that runs a command where only the folders of the image are writable."""
    isolated = ["unshare", "--map-root-user", "--mount", "sh", "-ec", PREPARE, "sh"]
    return [*isolated, *(str(folder / name) for name in FOLDERS), *command]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, on a system that allows this user to mount file systems over its subfolders."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for part in FOLDERS:
            (root / part).mkdir()
        probe = f"touch {root}/state/x && ! touch {root}/x 2>/dev/null"
        try:
            done = subprocess.run(inside(root, "sh", "-c", probe), capture_output=True, check=False)
        except OSError:
            pytest.skip("unshare is not installed")
        if done.returncode:
            pytest.skip("this user may not mount anything")
        yield root


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of the image, with its folders below ``folder``."""
    settings = {
        name: str(folder / value.lstrip("/"))
        for name, value in variables().items()
        if name in ("HOME", "HF_HOME") or name.startswith("XDG_")
    }
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return {**kept, **settings, "TMPDIR": str(folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """The address of a server that runs where only these folders are writable."""
    options = ("--port", "0", "--max-total-tokens", "4096")
    command = inside(folder, sys.executable, "-m", "sglang_plug", "serve", *options)
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
        assert process.stdout is not None
        try:
            line = next((line for line in process.stdout if READY in line), "")
            assert line, (folder / "log").read_text()
            yield line.split(" at ")[1].strip()
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0, (folder / "log").read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.stdout.close()


def test_it_answers_and_stores_files(url: str) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "What is the capital of Peru?"}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert "Lima" in json.load(answer)["choices"][0]["message"]["content"]
    boundary = "part"
    upload = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n{{}}\n\r\n'
        f"--{boundary}--\r\n"
    )
    content_type = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/files", upload.encode(), content_type), timeout=120
    ) as answer:
        assert json.load(answer)["bytes"] == 3
