"""One process of the two dies: the other notices, says so, and goes."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

import httpx

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}


def test_the_engine_is_killed(launch: Any) -> None:
    server = launch()
    plain: list[httpx.Response] = []

    def wait_for_an_answer() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            plain.append(client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3000, "ignore_eos": True}))

    waiting = threading.Thread(target=wait_for_an_answer)
    waiting.start()
    with server.client.stream("POST", "/generate", json={**LONG, "stream": True, "incremental": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        while server.load()[0] < 2:
            pass
        os.kill(server.engine_pid, signal.SIGKILL)
        rest = [line for line in lines if line]
        with httpx.Client(base_url=server.url, timeout=60) as client:
            health = client.get("/health")
            late = client.post("/generate", json=LONG)
    assert rest[-1] == "data: [DONE]"
    error = json.loads(rest[-2].removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
    assert "signal 9" in error["message"]
    waiting.join()
    for answer in (health, late, plain[0]):
        assert answer.status_code == 503
        assert "the engine is not running" in answer.json()["error"]["message"]
    assert server.exit_code() == 1
    server.wait_gone()
    assert "The engine failed" in server.log
    assert "Traceback" not in server.log


def test_the_api_process_is_killed(launch: Any) -> None:
    server = launch()
    assert server.engine_pid != server.process.pid
    with server.client.stream("POST", "/generate", json={**LONG, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.signal(signal.SIGKILL)
        assert server.exit_code() == -signal.SIGKILL
    server.wait_gone()
