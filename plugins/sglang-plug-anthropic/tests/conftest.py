"""A real server with the plugin: installed, or loaded from its folder."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DISTRIBUTION = "sglang-plug-anthropic"
KEY = "sesame"
READY = " at http://"


def _is_installed() -> bool:
    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="session")
def key() -> str:
    """Return the server's API key."""
    return KEY


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve the demo model with a key and room for one running and one waiting request."""
    flags = ["--port", "0", "--api-key", KEY, "--enable-cache-report", "--max-total-tokens", "8192", "--device", "cpu"]
    flags += ["--max-running-requests", "1", "--max-queued-requests", "1"]
    if not _is_installed():
        flags += ["--plugins-dir", str(Path(__file__).parents[2])]
    log = tmp_path_factory.mktemp("server") / "stderr.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sglang_plug", "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        )
    assert process.stdout is not None
    try:
        ready = next((line for line in process.stdout if READY in line), None)
        assert ready is not None, log.read_text(errors="replace")
        yield ready.split(" at ")[1].strip()
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
