"""Processes do not outlive the tests, and random numbers do not depend on earlier tests."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from .surroundings import clear_server_environment, is_foreign

KILLED = """
import os, signal, subprocess, sys
sys.path.insert(0, sys.argv[1])
from reaper import Reaper
reaper = Reaper()
process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
NUMBERS: set[tuple[float, float]] = set()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "Z"
    except OSError:
        return True


def test_what_a_killed_process_started_is_ended() -> None:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent)]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=240)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 240
    while not is_gone(int(done.stdout)):
        assert time.monotonic() < deadline, "it was left"
        time.sleep(0.02)


def test_the_callers_options_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(map(is_foreign, os.environ))
    for name in ("SGLANG_PLUG_API_KEY", "HTTPS_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "x")
    clear_server_environment()
    assert not any(map(is_foreign, os.environ)) and "PATH" in os.environ


@pytest.mark.parametrize("turn", range(3))
def test_random_numbers_do_not_depend_on_the_tests_before(turn: int) -> None:
    NUMBERS.add((random.random(), float(torch.rand(1))))
    assert len(NUMBERS) == 1
