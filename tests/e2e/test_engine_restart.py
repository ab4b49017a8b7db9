"""``--engine-restart``: the engine is killed, and the same server serves again."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest

from .replaying import in_time, replayed
from .servers import until

PARIS = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}


def refused(server: Any, before: int) -> httpx.Response:
    """Return the answer to a chat while there is no engine, after that with the process id ``before`` died."""
    while (answer := server.post("/v1/chat/completions", PARIS)).status_code == 200:
        in_time(server.engine_pids() in ([], [before]), "there is no engine")
    return answer


def served(server: Any) -> httpx.Response:
    """Return the first successful answer to a chat."""

    def ask() -> httpx.Response | None:
        answer: httpx.Response = server.post("/v1/chat/completions", PARIS)
        assert answer.status_code in (200, 503), answer.text
        return answer if answer.status_code == 200 else None

    answer: httpx.Response = until(ask, "it serves again")
    return answer


@pytest.fixture(scope="module")
def server(module_launcher: Any) -> Any:
    return module_launcher("--engine-restart")


@replayed
def test_the_engine_is_killed_and_the_server_serves_again(server: Any) -> None:
    expected = served(server).json()["choices"]
    for _ in range(2):
        first = server.engine_pid
        with server.client.stream("POST", "/generate", json=LONG) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(first, signal.SIGKILL)
            events = [line for line in lines if line]
        assert events[-1] == "data: [DONE]"
        in_time("signal 9" in events[-2], "the stream had not ended")
        answer = refused(server, first)
        assert answer.status_code == 503
        assert "is being started again" in answer.json()["error"]["message"]
        assert int(answer.headers["retry-after"]) > 0
        in_time(server.get("/health").status_code == 503, "there is no engine")
        assert served(server).json()["choices"] == expected
        assert server.get("/health").status_code == 200
        assert server.engine_pid != first
        server.wait_whole()
    assert "Traceback" not in server.log


@replayed
def test_stopping_while_the_engine_starts_again(server: Any) -> None:
    """SIGTERM ends a server whose engine is restarting; this is the last test of the server."""
    served(server)
    engine = server.engine_pid
    os.kill(engine, signal.SIGKILL)
    refused(server, engine)
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    server.wait_gone()
    assert "Traceback" not in server.log
