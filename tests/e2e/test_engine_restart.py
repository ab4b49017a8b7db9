"""``--engine-restart``: the engine is killed, and the same server serves again."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import httpx

PARIS = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}


def refused(server: Any) -> httpx.Response:
    """What a chat is answered with while there is no engine."""
    deadline = time.monotonic() + 60
    while (answer := server.post("/v1/chat/completions", PARIS)).status_code == 200:
        assert time.monotonic() < deadline, "nobody noticed that the engine is gone"
    return answer


def served(server: Any) -> httpx.Response:
    """The first answer after that."""
    deadline = time.monotonic() + 120
    while (answer := server.post("/v1/chat/completions", PARIS)).status_code != 200:
        assert answer.status_code == 503, answer.text
        assert time.monotonic() < deadline, "it never served again"
        time.sleep(0.05)
    return answer


def test_the_engine_is_killed_and_the_server_serves_again(launch: Any) -> None:
    server = launch("--engine-restart")
    expected = served(server).json()["choices"]
    for _ in range(2):
        first = server.engine_pid
        with server.client.stream("POST", "/generate", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(first, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert "signal 9" in rest[-2] and rest[-1] == "data: [DONE]"
        answer = refused(server)
        assert answer.status_code == 503
        assert "is being started again" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) > 0
        assert server.get("/health").status_code == 503
        assert served(server).json()["choices"] == expected
        assert server.get("/health").status_code == 200
        assert server.engine_pid != first
        server.wait_whole()
    assert "Traceback" not in server.log
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()


def test_stopping_while_the_engine_starts_again(launch: Any) -> None:
    server = launch("--engine-restart")
    os.kill(server.engine_pid, signal.SIGKILL)
    refused(server)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
    assert "Traceback" not in server.log
