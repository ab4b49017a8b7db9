"""Idle connections and streams that are not read do not keep the server from serving other clients."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from .servers import until

MAX_CONNECTIONS = 20
TOKENS = 300
PAUSED = "paused"


@pytest.fixture(scope="module")
def small(module_launcher: Any) -> Iterator[Any]:
    """A server with few connections and running slots for two sequences."""
    return module_launcher.in_thread(
        "--max-connections", str(MAX_CONNECTIONS), "--max-running-requests", "2", "--log-level", "warning"
    )


def stream_request() -> bytes:
    """Return a request for a long stream of large events."""
    params = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    body = {"text": "Hi", "stream": True, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}
    data = json.dumps(body).encode()
    head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data)
    return head + data


def test_idle_connections_do_not_keep_others_out(small: Any) -> None:
    with ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection(("127.0.0.1", small.port)))
            for _ in range(3 * MAX_CONNECTIONS)
        ]
        assert small.get("/health").status_code == 200
        for connection in idle[: 2 * MAX_CONNECTIONS]:  # the oldest were closed
            connection.settimeout(60)
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:
                pass


def test_streams_that_nobody_reads_leave_their_slots_to_others_and_lose_nothing(small: Any) -> None:
    with ExitStack() as opened:
        stalled = []
        for _ in range(3):
            connection = opened.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", small.port))
            connection.sendall(stream_request())
            stalled.append(connection)
        until(lambda: small.info()[PAUSED] == 3, "all three are paused, also the one that was queued")
        small.wait_whole()  # paused sequences hold no slots once the step in flight is over
        assert small.info()[PAUSED] == 3
        assert small.generate({"text": "Hi", "sampling_params": {"max_new_tokens": 2}})["text"]
        stalled[0].settimeout(240)
        answer = b"".join(iter(lambda: stalled[0].recv(1 << 20), b""))
        last = [line for line in answer.split(b"\n") if line.startswith(b"data: {")][-1]
        event = json.loads(last[6:].split(b"\r")[0])
        assert event["meta_info"]["completion_tokens"] == TOKENS
    until(lambda: small.info()[PAUSED] == 0 and small.is_whole(), "the others are aborted when their clients leave")
