"""Tests of the probes while a server starts, while its engine hangs, and afterwards."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import httpx

from .servers import TIMEOUT, until
from .test_stop_signals import BLOCKED_STEP, ended, plugin, stop

PROBES = ("/health", "/ping", "/ready", "/readyz", "/health_generate")


def refusals(url: str) -> set[str]:
    """Return the error messages of the probes, all of which must answer 503."""
    with httpx.Client(base_url=url, timeout=TIMEOUT) as client:
        answers = [client.get(path) for path in PROBES]
    assert {answer.status_code for answer in answers} == {503}
    return {answer.json()["error"]["message"] for answer in answers}


def test_a_server_that_warms_up_and_whose_engine_is_stopped(launch: Any, tmp_path: Path) -> None:
    file = plugin(tmp_path, BLOCKED_STEP)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ("--schedule-policy", "blocked", "--drain-timeout", "0", "--port", str(port))
    server = launch.begin("--plugin", str(file), *flags)
    until(file.with_suffix(".reached").exists, "the warm-up request is in the engine")
    (refusal,) = refusals(f"http://127.0.0.1:{port}")
    assert "is warming up" in refusal
    file.with_suffix(".go").touch()
    server.wait_ready()
    assert {server.get(path).status_code for path in PROBES} == {200}
    os.kill(server.engine_pid, signal.SIGSTOP)
    until(lambda: server.get("/health").status_code == 503, "the engine is missed")
    (refusal,) = {re.sub(r"\d+", "N", text) for text in refusals(server.url)}
    assert refusal == "no heartbeat from the engine for N seconds"
    os.kill(server.engine_pid, signal.SIGCONT)
    until(lambda: server.get("/health").status_code == 200, "the engine is back")
    assert server.get("/health_generate").status_code == 200
    os.kill(server.engine_pid, signal.SIGSTOP)
    stop(server, "group", 1)
    ended(server)


def test_without_a_warm_up_it_is_ready_at_once(launch: Any, tmp_path: Path) -> None:
    file = plugin(tmp_path, BLOCKED_STEP)
    server = launch.in_thread("--plugin", str(file), "--schedule-policy", "blocked", "--skip-server-warmup")
    assert {server.get(path).status_code for path in PROBES[:3]} == {200}
    assert not file.with_suffix(".reached").exists()
