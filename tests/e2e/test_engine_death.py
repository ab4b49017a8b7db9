"""If the engine dies, the API process reports it and ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from typing import Any

import httpx

from .replaying import in_time, replayed, wait_in_time, within
from .servers import TIMEOUT

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
SERVED_ON = 1.0
"""Seconds for which a server without an engine still answers with an error."""


@replayed
def test_the_engine_is_killed(launch: Any) -> None:
    server = launch()
    body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True}
    plain: list[httpx.Response] = []

    def wait_for_the_last_answer() -> None:
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client, contextlib.suppress(httpx.TransportError):
            while not plain or plain[-1].status_code == 200:
                plain.append(client.post("/v1/completions", json=body))

    waiting = threading.Thread(target=wait_for_the_last_answer)
    waiting.start()
    with server.client.stream("POST", "/generate", json={**LONG, "stream": True, "incremental": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        wait_in_time(lambda: server.load()[0] == 2, "both requests run")
        with within(SERVED_ON, "it still answers, though its engine is gone"):
            os.kill(server.engine_pid, signal.SIGKILL)
            events = [line for line in lines if line]
            with httpx.Client(base_url=server.url, timeout=TIMEOUT) as client:
                health = client.get("/health")
                late = client.post("/generate", json=LONG)
    assert events[-1] == "data: [DONE]"
    in_time("error" in events[-2], "the stream had not ended")
    error = json.loads(events[-2].removeprefix("data: "))
    assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
    assert "signal 9" in error["message"]
    waiting.join()
    in_time(plain[-1].status_code != 200, "the other request had not ended")
    for answer in (health, late, plain[-1]):
        assert answer.status_code == 503
        assert "the engine is not running" in answer.json()["error"]["message"]
    assert server.exit_code() == 1
    server.wait_gone()
    assert "The engine failed" in server.log
    assert "Traceback" not in server.log
