"""Requests generated from the OpenAPI document of the server never lead to a server error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="schemathesis comes with the 'fuzz' extra: make fuzz")

SECONDS = int(os.environ.get("FUZZ_SECONDS", "15"))
SEED = os.environ.get("FUZZ_SEED", "1")
SMALL = ["--context-length", "64", "--max-sequences-per-request", "8", "--max-total-tokens", "2048"]
"""Options with low limits, with which no request takes long."""
GREEDY = {"text": "Once upon a time", "sampling_params": {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}}


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS + 900)
def test_no_request_makes_the_server_fail(launch: Any, tmp_path: Path) -> None:
    server = launch(*SMALL, "--file-storage-path", str(tmp_path / "storage"))
    before = server.generate(GREEDY)["text"]
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--no-color"]
    command += ["--checks", "not_a_server_error", "--continue-on-failure", "--no-shrink", "--warnings", "off"]
    command += ["--max-time", str(SECONDS), "--seed", SEED, "--request-timeout", "240"]
    command += ["--phases", "examples,coverage,fuzzing", "--generation-database", "none", "--max-examples", "100000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    server.wait_whole()
    assert server.generate(GREEDY)["text"] == before
    assert "Traceback" not in server.log
