"""Draining, and limits of bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from sglang_plug_api.errors import ApiError
from sglang_plug_api.middleware import BodyLimit, Gate, GateState

Message = dict[str, Any]


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


async def call(
    app: Any, messages: Iterable[Message] = (), headers: Iterable[tuple[bytes, bytes]] = ()
) -> list[Message]:
    """What ``app`` sends to a client that sends ``messages`` and then nothing more."""
    sent: list[Message] = []
    waiting = iter(messages)

    async def receive() -> Message:
        for message in waiting:
            return message
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "path": "/x", "headers": list(headers)}, receive, send)
    return sent


class Reader:
    """An application that reads the whole body."""

    def __init__(self) -> None:
        self.read = b""
        self.left = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.read += message.get("body", b"")
            more = message.get("more_body", False)
        self.left = (await receive())["type"] == "http.disconnect"


LEFT = {"type": "http.disconnect"}


async def test_a_body_within_the_limit_passes_and_disconnects_are_seen() -> None:
    reader = Reader()
    await call(BodyLimit(reader, 10, 5.0), [body(b"12345", True), body(b"67890"), LEFT])
    assert (reader.read, reader.left) == (b"1234567890", True)


@pytest.mark.parametrize("length", [b"11", b"99999999999999999999999", b"-1", b"1e1", b"", b"0x5", "٣".encode()])
async def test_a_declared_length_that_is_too_large_or_none_is_refused_unread(length: bytes) -> None:
    reader = Reader()
    start, content = await call(BodyLimit(reader, 10, 5.0), [], [(b"content-length", length)])
    assert start["status"] == 413
    assert json.loads(content["body"])["error"]["type"] == "PayloadTooLargeError"
    assert "--max-request-bytes" in content["body"].decode()
    assert reader.read == b""


async def test_an_undeclared_body_is_refused_as_soon_as_it_is_too_large() -> None:
    reader = Reader()
    with pytest.raises(ApiError) as caught:
        await call(BodyLimit(reader, 10, 5.0), [body(b"123456", True), body(b"789012", True), body(b"never")])
    assert caught.value.status == 413
    assert reader.read == b"123456"


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(ApiError) as caught:
        await call(BodyLimit(Reader(), 10, 0.01), [body(b"1", True)])
    assert caught.value.status == 408


async def test_the_time_limit_is_for_the_body_only() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"1"
        async with asyncio.timeout(0.05):
            await receive()

    with pytest.raises(TimeoutError):  # its own, not that of the body
        await call(BodyLimit(slow, 10, 0.01), [body(b"1")])


async def test_what_is_no_http_passes() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    state = GateState()
    state.closing = True
    await Gate(BodyLimit(app, 1, 1.0), state)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert (seen, state.in_flight) == (["lifespan"], 0)


async def test_the_gate_counts_and_closes() -> None:
    state, inside, leave = GateState(), asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        inside.set()
        await leave.wait()

    gate = Gate(app, state)
    first = asyncio.create_task(call(gate))
    await inside.wait()
    assert state.in_flight == 1
    state.closing = True
    start, content = await call(gate)
    assert (start["status"], dict(start["headers"])[b"connection"]) == (503, b"close")
    assert "shutting down" in json.loads(content["body"])["message"]
    assert state.in_flight == 1
    leave.set()
    await first
    assert state.in_flight == 0


async def test_a_request_cancelled_by_the_shutdown_ends_quietly_and_any_other_does_not() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    for closing in (True, False):
        state = GateState()
        task = asyncio.create_task(call(Gate(app, state)))
        while not state.in_flight:
            await asyncio.sleep(0)
        state.closing = closing
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError) != closing
        assert state.in_flight == 0


async def test_the_gate_counts_down_after_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    state = GateState()
    with pytest.raises(RuntimeError):
        await call(Gate(app, state))
    assert state.in_flight == 0
