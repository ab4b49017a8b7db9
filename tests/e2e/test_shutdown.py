"""Tests of the end of a server: in order at one signal, at once at a second one, and without processes left behind.

Starts that fail because of an error of the user are tested here, too.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import Any

import httpx
import pytest

from .replaying import in_time, replayed, within
from .servers import TIMEOUT, until

LONG = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}, "stream": True}


def test_sigterm_lets_streams_end_and_refuses_what_is_new(launch: Any) -> None:
    server = launch("--drain-timeout", "600", "--send-timeout", "600")
    # with all of the text and ten alternatives for each token in every event, the stream exceeds the buffers of the
    # connection, so that it cannot end before it is read
    params = {"max_new_tokens": 400, "ignore_eos": True}
    body = {**LONG, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}
    with server.client.stream("POST", "/generate", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.signal(signal.SIGTERM)
        with httpx.Client(base_url=server.url, timeout=TIMEOUT) as other:
            answer = other.get("/health")
            while answer.status_code == 200:  # the signal is on its way
                answer = other.get("/health")
            for refused in (answer, other.post("/generate", json=LONG)):
                assert refused.status_code == 503
                assert "shutting down" in refused.json()["error"]["message"]
                assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        events = [line for line in lines if line]
    assert events[-1] == "data: [DONE]"
    assert json.loads(events[-2].removeprefix("data: "))["meta_info"]["completion_tokens"] == 400
    assert server.exit_code() == 0
    assert server.members() == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


@replayed
def test_a_second_sigterm_ends_at_once(launch: Any) -> None:
    server = launch("--drain-timeout", "600")
    with server.client.stream("POST", "/generate", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        with within(2.0, "the stream had not ended"):
            server.signal(signal.SIGTERM)
            while server.client.get("/health").status_code == 200:
                pass
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
        last = [line for line in lines if line][-1]
    assert server.members() == []
    in_time(last != "data: [DONE]", "the stream had not ended")
    assert "shutting down" in last


@replayed
def test_requests_that_take_too_long_are_aborted(launch: Any) -> None:
    server = launch("--drain-timeout", "0.1")
    with server.client.stream("POST", "/generate", json=LONG) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0
        last = [line for line in lines if line][-1]
    assert server.members() == []
    in_time(last != "data: [DONE]", "the stream had not ended")
    assert "shutting down" in last
    assert "1 requests did not end in time" in server.log


def test_a_client_that_does_not_read_its_answer_is_no_error(launch: Any) -> None:
    server = launch("--drain-timeout", "0", "--send-timeout", "600")
    params = {"max_new_tokens": 4, "ignore_eos": True, "n": 4}
    body = {"text": "Once " * 1500, "sampling_params": params, "stream": True, "return_logprob": True}
    # each first event is larger than what the system buffers
    raw = json.dumps({**body, "logprob_start_len": 0, "top_logprobs_num": 60}).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        head = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        client.sendall(b"POST /generate HTTP/1.1\r\n" + head.encode() + raw)
        assert client.recv(8) == b"HTTP/1.1"
        until(lambda: server.load() == (0, 0), "the outputs are generated")
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
    assert server.members() == []
    assert "Traceback" not in server.log and "ended by force" not in server.log


def test_responses_in_the_background_that_only_memory_keeps_do_not_delay_the_end(launch: Any) -> None:
    server = launch("--drain-timeout", "600")
    body = {"input": "Hi", "background": True, "max_output_tokens": 4000, "ignore_eos": True}
    started = [server.post("/v1/responses", body).json() for _ in range(2)]
    assert all(response["status"] in ("queued", "in_progress") for response in started)
    server.post("/v1/responses", {"input": "Hi", "background": True, "max_output_tokens": 1})
    server.signal(signal.SIGTERM)
    assert server.exit_code() == 0
    assert server.members() == []
    assert "Traceback" not in server.log and "ended by force" not in server.log


def failed_start(*flags: str) -> str:
    """Return the stderr of a start that fails because of an error of the user: exit status 2, and no traceback."""
    command = [sys.executable, "-m", "sglang_plug", "serve", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_a_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        output = failed_start("--port", str(port))
    assert len(output.strip().splitlines()) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in output and "--port" in output


def test_an_unknown_backend() -> None:
    output = failed_start("--port", "0", "--attention-backend", "torhc")
    assert "no attention named 'torhc'" in output and "did you mean 'torch'?" in output


def test_a_model_that_is_not_there(tmp_path: Any) -> None:
    output = failed_start("--port", "0", str(tmp_path / "missing"))
    assert "missing" in output
    (tmp_path / "empty").mkdir()
    output = failed_start("--port", "0", "--model-path", str(tmp_path / "empty"))
    assert "empty" in output
