"""Tests of connection timeouts, with timers that the test controls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from sglang_plug_api.http.connection_limit import ConnectionLimit
from sglang_plug_api.http.connection_timeouts import http_protocol

HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n"


class Timer:
    """A timer of the event loop, which ends when the test calls ``run_out``."""

    def __init__(self, seconds: float, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.seconds, self.is_cancelled = seconds, False
        self._call, self._args = call, args

    def cancel(self) -> None:
        self.is_cancelled = True

    def run_out(self) -> None:
        assert not self.is_cancelled
        self._call(*self._args)


class Loop:
    """A stand-in for an event loop with the methods that the protocol calls; timers end only at ``run_out``."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self.answer: Any = None

    def call_later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Timer:
        self.timers.append(Timer(seconds, call, args))
        return self.timers[-1]

    def create_task(self, coroutine: Any, **_: Any) -> Any:
        coroutine.close()
        return asyncio.get_running_loop().create_future()

    @property
    def waiting(self) -> list[float]:
        return [timer.seconds for timer in self.timers if not timer.is_cancelled]


class Transport(asyncio.Transport):
    """A transport that records whether it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed, self.aborted, self.protocol = False, False, None
        self.ended = False
        self.unsent, self.limits = 0, (65536, 16384)
        self.written = b""

    def get_protocol(self) -> Any:
        return self.protocol

    def write(self, data: Any) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limits = (high or 0, low or 0)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connect(limit: ConnectionLimit | None = None) -> tuple[Any, Loop, Transport]:
    """Return a new connection with timeouts of thirty seconds for a head and twenty for sending an answer."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nothing runs here")

    loop, transport = Loop(), Transport()
    config = uvicorn.Config(app, lifespan="off", log_config=None)
    protocol: Any = http_protocol(30.0, 20.0, limit or ConnectionLimit(100))(
        config=config, server_state=ServerState(), app_state={}, _loop=loop
    )  # type: ignore[call-arg]
    transport.protocol = protocol
    protocol.connection_made(transport)
    return protocol, loop, transport


async def test_a_connection_that_says_nothing_is_closed() -> None:
    _, loop, transport = connect()
    assert loop.waiting == [30.0]
    loop.timers[0].run_out()
    assert transport.closed


async def test_pieces_of_a_head_do_not_prolong_it() -> None:
    protocol, loop, _ = connect()
    for byte in HEAD[:-1]:
        protocol.data_received(bytes([byte]))
    assert len(loop.timers) == 1 and loop.waiting == [30.0]


async def test_a_whole_head_ends_the_wait_and_the_next_one_begins_another() -> None:
    protocol, loop, _ = connect()
    protocol.data_received(HEAD)
    assert loop.waiting == []
    protocol.data_received(b"{}")
    assert loop.waiting == []
    answer(protocol)
    protocol.data_received(HEAD[:10])
    assert loop.waiting == [30.0]
    protocol.connection_lost(None)
    assert loop.waiting == []


def answer(protocol: Any) -> None:
    """Send an empty answer to the current request."""
    for event in (h11.Response(status_code=200, headers=[(b"content-length", b"0")]), h11.EndOfMessage()):
        protocol.conn.send(event)
    protocol.cycle.response_complete = True
    protocol.on_response_complete()


async def test_between_requests_it_waits_longer_than_the_pools_of_clients_and_proxies() -> None:
    protocol, loop, transport = connect()
    protocol.data_received(HEAD + b"{}")
    answer(protocol)
    (idle,) = loop.waiting
    assert idle > 90.0
    loop.timers[-1].run_out()
    assert transport.closed


async def test_an_upgraded_connection_is_left_alone() -> None:
    protocol, loop, transport = connect()
    transport.protocol = object()
    protocol.data_received(HEAD[:10])
    assert loop.waiting == []


def stall(protocol: Any, transport: Transport, unsent: int) -> None:
    """Send an answer of which so many bytes do not fit into the send buffer."""
    protocol.data_received(HEAD)
    transport.unsent = unsent
    protocol.pause_writing()


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    protocol, loop, transport = connect()
    assert transport.limits == (0, 0)  # so that the protocol is paused for every unsent byte
    stall(protocol, transport, 1000)
    assert loop.waiting == [20.0]
    loop.timers[-1].run_out()
    assert transport.aborted and not transport.closed


async def test_an_answer_that_is_taken_slowly_is_not() -> None:
    protocol, loop, transport = connect()
    stall(protocol, transport, 1000)
    for unsent in (999, 10):
        transport.unsent = unsent
        loop.timers[-1].run_out()
        assert not transport.aborted
    loop.timers[-1].run_out()  # nothing was sent since the last timer
    assert transport.aborted


async def test_an_answer_that_is_taken_or_whose_client_leaves_is_watched_no_more() -> None:
    protocol, loop, transport = connect()
    stall(protocol, transport, 1000)
    protocol.resume_writing()
    assert loop.waiting == []
    protocol.pause_writing()
    assert loop.waiting == [20.0]
    protocol.connection_lost(None)
    assert loop.waiting == []


UNREADABLE: list[tuple[bytes, int, str]] = [
    (b"\0\1\2\r\n\r\n", 400, "illegal request line"),
    (b"GET / HTTP/1.1\r\n\r\n", 400, "Host"),
    (HEAD.replace(b": 2", b": -2"), 400, "Content-Length"),
    (HEAD.replace(b"content-length: 2", b"transfer-encoding: gzip"), 400, "Transfer-Encoding"),
    (HEAD.replace(b"content-length: 2", b"transfer-encoding: chunked") + b"zz\r\n", 400, "chunk"),
    (b"GET / HTTP/1.1\r\nhost: " + b"x" * 100_000, 431, "too long"),
]


@pytest.mark.parametrize(("sent", "status", "about"), UNREADABLE, ids=lambda value: str(value)[:30])
async def test_what_is_no_http_is_refused_like_everything_else(sent: bytes, status: int, about: str) -> None:
    protocol, _, transport = connect()
    protocol.data_received(sent)
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"content-type: application/json" in head and b"x-request-id: " in head and b"connection: close" in head
    error = json.loads(body)
    assert about.lower() in error["message"].lower() and error["code"] == status
    assert transport.ended


async def test_a_client_that_has_its_answer_gets_no_second_one() -> None:
    protocol, _, transport = connect()
    protocol.data_received(HEAD.replace(b"content-length: 2", b"transfer-encoding: chunked"))
    for event in (h11.Response(status_code=404, headers=[]), h11.EndOfMessage()):
        protocol.conn.send(event)
    protocol.data_received(b"zz\r\n")
    assert transport.written == b"" and transport.ended


async def test_what_follows_a_refused_request_is_dropped_for_a_while_so_that_the_client_gets_the_refusal() -> None:
    protocol, loop, transport = connect()
    protocol.data_received(b"\0\r\n\r\n")
    answer = transport.written
    for _ in range(3):
        protocol.data_received(HEAD + b"{}")
    assert transport.written == answer and protocol.cycle is None
    assert len(loop.waiting) == 1 and not transport.closed
    loop.timers[-1].run_out()
    assert transport.closed


async def test_the_connection_that_waits_longest_for_its_client_makes_room() -> None:
    limit = ConnectionLimit(2)
    busy, _, first = connect(limit)
    busy.data_received(HEAD + b"{}")
    idle, _, second = connect(limit)
    idle.data_received(HEAD[:10])
    _, _, third = connect(limit)
    assert (first.aborted, second.aborted, third.aborted) == (False, True, False)
    idle.connection_lost(None)
    answer(busy)
    connect(limit)
    assert (first.aborted, third.aborted) == (False, True)  # the first one has waited only since its answer


async def test_while_all_connections_have_a_request_another_one_is_refused() -> None:
    limit = ConnectionLimit(1)
    busy, _, first = connect(limit)
    busy.data_received(HEAD + b"{}")
    for _ in range(2):
        another, _, transport = connect(limit)
        assert transport.written.startswith(b"HTTP/1.1 503 ") and transport.closed
        another.data_received(HEAD)
        assert transport.written.count(b"HTTP/1.1") == 1
        another.connection_lost(None)
    busy.connection_lost(None)
    _, _, transport = connect(limit)
    assert transport.written == b"" and not first.aborted


async def test_a_body_that_does_not_arrive_keeps_no_slot() -> None:
    limit = ConnectionLimit(1)
    slow, _, first = connect(limit)
    slow.data_received(HEAD)
    connect(limit)
    assert first.aborted
