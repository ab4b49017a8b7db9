"""A server process is started, found ready, and stopped with its children."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchmarks.common.server import descendants, serving

READY = """
import subprocess, sys, time
print("starting", flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(sys.argv[1:], child.pid, file=sys.stderr, flush=True)
print("Ready at http://127.0.0.1:4711 now", flush=True)
time.sleep(600)
"""


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_ready_and_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(["--flag"], log=log, program=program(READY)) as server:
        assert server.url == "http://127.0.0.1:4711" and server.start_seconds > 0
        pids = descendants(server.pid)
        assert len(pids) == 2 and all(map(alive, pids))
        assert server.memory > 1 << 20
        assert "['--flag', '--port', '0']" in log.read_text(encoding="utf-8")
    deadline = time.monotonic() + 240
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, pids))


def test_a_server_that_ends_shows_its_log(tmp_path: Path) -> None:
    code = "import sys; print('no such model', file=sys.stderr); sys.exit(2)"
    with (
        pytest.raises(RuntimeError, match="(?s)status 2.*no such model"),
        serving([], log=tmp_path / "log", program=program(code)),
    ):
        pass


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    code = "import os, sys, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(600)"
    for timeout in (1.0, 10.0, 100.0):  # until it has come to say who it is
        with (
            pytest.raises(RuntimeError, match="not ready in time"),
            serving([], log=tmp_path / "log", program=program(code), timeout=timeout),
        ):
            pass
        if pid := (tmp_path / "log").read_text(encoding="utf-8"):
            break
    assert not alive(int(pid))
