"""Very many clients at once, and clients that are slow on purpose: other clients are served, and no KV slot is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from .replaying import replayed, within
from .servers import NO_GRAMMARS, TIMEOUT, until

STREAMS = int(os.environ.get("STORM_STREAMS", "1000"))
VANISHING = 200
SLOW = 10
LORIS = 50
DEAF = 5
KEPT_ALIVE = 500
GIVEN_UP = "read nothing of its response"
PROMPT = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
SHORT = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}}
HALF_A_HEAD = b"POST /generate HTTP/1.1\r\nhost: localhost\r\ncontent-type: appli"


HEADER_TIMEOUT = 1.0


@pytest.fixture(scope="module")
def short_timeout_server(module_launcher: Any) -> Any:
    """A server with timeouts of one second for receiving a request head and for sending data to a client."""
    return module_launcher(
        "--header-timeout", str(HEADER_TIMEOUT), "--send-timeout", "1", "--log-requests", *NO_GRAMMARS
    )


def raw(path: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of a POST request."""
    data = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % (path.encode(), len(data)) + data


@asynccontextmanager
async def connections(server: Any, count: int) -> AsyncIterator[list[tuple[Any, Any]]]:
    """Yield open connections, which are aborted at the end."""
    opened = await asyncio.gather(*(asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)))
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def read_stream(server: Any, body: dict[str, Any]) -> list[Any]:
    """Return the events of a stream over a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(raw("/generate", {**body, "stream": True}))
    head = await reader.readline()
    if not head:
        raise ConnectionResetError("closed without an answer")
    assert head.split()[1] == b"200"
    events: list[Any] = []
    while (line := (await reader.readline()).strip()) != b"data: [DONE]":
        assert not reader.at_eof(), "the stream was cut"
        if line.startswith(b"data: "):
            events.append(json.loads(line[6:]))
    writer.close()
    return events


def text_of(server: Any) -> str:
    return server.generate(SHORT)["text"]


async def others(server: Any, count: int = 10) -> list[str]:
    """Return the answers that well-behaved clients get meanwhile."""
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        answers = await asyncio.gather(*(client.post("/generate", json=SHORT) for _ in range(count)))
    return [answer.json()["text"] for answer in answers]


@pytest.mark.slow
async def test_a_thousand_streams_at_once(server: Any) -> None:
    expected = text_of(server)
    streams = await asyncio.gather(*(read_stream(server, SHORT) for _ in range(STREAMS)))
    assert {events[-1]["text"] for events in streams} == {expected}
    assert {events[-1]["meta_info"]["finish_reason"]["type"] for events in streams} == {"length"}
    server.wait_whole()


@pytest.mark.slow
async def test_hundreds_of_clients_vanish(server: Any) -> None:
    expected, draw = text_of(server), random.Random(7)
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True}}

    async def vanish(index: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = raw("/generate", {**body, "stream": index % 2 == 0})
        writer.write(request[: draw.randrange(1, len(request))] if index % 5 == 0 else request)
        await asyncio.sleep(draw.random() * 2)
        writer.transport.abort()

    *_, texts = await asyncio.gather(*(vanish(index) for index in range(VANISHING)), others(server))
    assert texts == [expected] * 10
    server.wait_whole()
    assert "Traceback" not in server.log


async def test_slow_readers_delay_nobody(server: Any) -> None:
    expected = text_of(server)
    params = {"max_new_tokens": 300, "ignore_eos": True}
    body = {"text": PROMPT, "stream": True, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}

    async def sip(reader: asyncio.StreamReader) -> None:
        while await reader.read(1):
            await asyncio.sleep(0.1)

    async with connections(server, SLOW) as opened:
        for _, writer in opened:
            writer.write(raw("/generate", body))
        readers = [asyncio.create_task(sip(reader)) for reader, _ in opened]
        try:
            assert await others(server) == [expected] * 10
            server.wait_whole()  # all is computed or paused, and they still read
            assert not any(reader.done() for reader in readers)
            assert await others(server) == [expected] * 10
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
    server.wait_whole()


@replayed
async def test_clients_that_never_finish_their_headers(server: Any, short_timeout_server: Any) -> None:
    expected = text_of(server)
    async with connections(short_timeout_server, LORIS) as opened:
        for index, (_, writer) in enumerate(opened):
            if index % 2:  # the other connections send nothing
                writer.write(HALF_A_HEAD)
        with within(HEADER_TIMEOUT, "the time for heads"):
            assert await others(short_timeout_server, 4) == [expected] * 4
        for reader, _ in opened:
            async with asyncio.timeout(TIMEOUT):
                assert await reader.read() == b""  # the server closed it
    with within(HEADER_TIMEOUT, "the time for heads"):
        assert await others(short_timeout_server, 1) == [expected]


@replayed
async def test_one_byte_now_and_then_does_not_prolong_it(short_timeout_server: Any) -> None:
    async with connections(short_timeout_server, 1) as [(reader, writer)]:
        with within(HEADER_TIMEOUT, "the time for heads"):
            writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"200" in await reader.readuntil(b"\r\n\r\n")
        closed = asyncio.create_task(reader.read())
        for byte in HALF_A_HEAD * 40:  # a second request on the same connection
            if closed.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        assert closed.done() and closed.result() == b""


@replayed
async def test_a_request_that_takes_longer_than_the_header_timeout_is_served(short_timeout_server: Any) -> None:
    tokens = 1000  # takes longer than the timeout at a millisecond per step
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    with within(HEADER_TIMEOUT, "the time for heads"):
        events = await read_stream(short_timeout_server, {**body, "incremental": True})
    assert events[-1]["meta_info"]["completion_tokens"] == tokens


async def test_half_closed_connections_leave_nothing_behind(server: Any) -> None:
    expected = text_of(server)
    body = {"text": PROMPT, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    async with connections(server, LORIS) as opened:
        for index, (_, writer) in enumerate(opened):
            writer.write(raw("/generate", {**body, "stream": index % 2 == 0}))
            writer.write_eof()  # the client neither sends more nor reads
        assert await others(server) == [expected] * 10
    server.wait_whole()
    assert "Traceback" not in server.log


@pytest.mark.slow
async def test_very_many_connections_that_are_kept(server: Any) -> None:
    expected = text_of(server)
    async with connections(server, KEPT_ALIVE) as opened:
        for turn in range(2):
            for _, writer in opened:
                writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            for reader, _ in opened:
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200"), (turn, head)
        assert await others(server) == [expected] * 10
    server.wait_whole()


def stalled_socket(server: Any) -> socket.socket:
    """Return a connected socket with a very small receive buffer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    return connection


@replayed
async def test_clients_that_never_read_are_given_up(server: Any, short_timeout_server: Any) -> None:
    expected, tokens = text_of(server), 4000
    before = len(short_timeout_server.log)
    params = {"max_new_tokens": tokens, "ignore_eos": True}
    # with all of the text and ten alternatives for each token in every event, the system's buffers are soon full
    body = {"text": PROMPT, "stream": True, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 10}
    with contextlib.ExitStack() as opened:
        for _ in range(DEAF):
            opened.enter_context(stalled_socket(short_timeout_server)).sendall(raw("/generate", body))
        with within(HEADER_TIMEOUT, "the time for heads"):
            assert await others(short_timeout_server, 2) == [expected] * 2
        until(lambda: short_timeout_server.log[before:].count(GIVEN_UP) == DEAF, "the connections are given up")
        with within(HEADER_TIMEOUT, "the time for heads"):
            short_timeout_server.wait_whole()  # while the sockets are open
        until(
            lambda: short_timeout_server.log[before:].count("reason='abort'") >= DEAF,
            "the ends of the requests are logged",
        )
        ended = [line for line in short_timeout_server.log[before:].splitlines() if "reason='abort'" in line]
        assert len(ended) == DEAF
        assert all(int(line.partition("output_tokens=")[2].partition(",")[0]) < tokens for line in ended)
    with within(HEADER_TIMEOUT, "the time for heads"):
        assert await others(short_timeout_server, 1) == [expected]


@replayed
async def test_a_whole_answer_that_is_never_read_keeps_no_connection(short_timeout_server: Any) -> None:
    before, ids = len(short_timeout_server.log), list(range(1000))
    params = {"max_new_tokens": 100, "ignore_eos": True}
    body = {"text": PROMPT, "sampling_params": params, "return_logprob": True, "token_ids_logprob": ids}
    with stalled_socket(short_timeout_server) as connection:
        connection.sendall(raw("/generate", body))
        until(lambda: GIVEN_UP in short_timeout_server.log[before:], "the connection is given up")
        with within(HEADER_TIMEOUT, "the time for heads"):
            short_timeout_server.wait_whole()
    assert "Traceback" not in short_timeout_server.log


async def test_very_long_texts_delay_nobody(server: Any) -> None:
    expected = text_of(server)
    bodies = [{"text": "ab " * 300_000}, {"text": ["ab " * 5000] * 200}, {"text": "ab " * 8_000_000}]
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        refused = [asyncio.create_task(client.post("/generate", json=body)) for body in bodies]
        assert await others(server) == [expected] * 10
        answers = [await task for task in refused]
    assert [answer.status_code for answer in answers] == [400, 400, 400]
    messages = [answer.json()["error"]["message"] for answer in answers]
    assert "longer than the model's context length" in messages[0]
    assert "24000000 characters; the maximum is" in messages[2]
    server.wait_whole()
