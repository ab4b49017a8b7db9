"""Tests of the middleware: request ids, draining, and limits of bodies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import pytest

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.middleware import BodyLimit, CatchAllErrors, Gate, GateState, RequestIds

Message = dict[str, Any]
LONG = 300.0


def body(data: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


async def call(
    app: Any, messages: Iterable[Message] = (), headers: Iterable[tuple[bytes, bytes]] = ()
) -> list[Message]:
    """Return the messages that ``app`` sends to a client that sends ``messages`` and then nothing more."""
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
        self.disconnected = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            message = await receive()
            self.read += message.get("body", b"")
            more = message.get("more_body", False)
        self.disconnected = (await receive())["type"] == "http.disconnect"


DISCONNECT = {"type": "http.disconnect"}


async def test_a_body_within_the_limit_passes_and_disconnects_are_seen() -> None:
    reader = Reader()
    await call(BodyLimit(reader, 10, LONG), [body(b"12345", True), body(b"67890"), DISCONNECT])
    assert (reader.read, reader.disconnected) == (b"1234567890", True)


@pytest.mark.parametrize("length", [b"11", b"99999999999999999999999", b"-1", b"1e1", b"", b"0x5", "٣".encode()])
async def test_a_declared_length_that_is_too_large_or_none_is_refused_unread(length: bytes) -> None:
    reader = Reader()
    start, content = await call(BodyLimit(reader, 10, LONG), [], [(b"content-length", length)])
    assert start["status"] == 413
    assert json.loads(content["body"])["error"]["type"] == "PayloadTooLargeError"
    assert "--max-request-bytes" in content["body"].decode()
    assert reader.read == b""


async def test_an_undeclared_body_is_refused_as_soon_as_it_is_too_large() -> None:
    reader = Reader()
    with pytest.raises(ApiError) as caught:
        await call(BodyLimit(reader, 10, LONG), [body(b"123456", True), body(b"789012", True), body(b"never")])
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
    types: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        types.append(scope["type"])

    state = GateState()
    state.closing = True
    await Gate(BodyLimit(app, 1, 1.0), state)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert (types, state.in_flight) == (["lifespan"], 0)


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


async def cancelled(kind: bytes | None, closing: bool) -> Any:
    """Cancel a request, after the head of an answer of content type ``kind`` unless that is ``None``.

    Return the messages that the client receives, or the error that passes the gate.
    """

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if kind is not None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        state.closing = closing
        await asyncio.Event().wait()

    state = GateState()
    task = asyncio.create_task(call(Gate(app, state)))
    while not state.in_flight:
        await asyncio.sleep(0)
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert state.in_flight == 0
    return result


async def test_a_request_cancelled_by_the_shutdown_is_told_and_any_other_passes() -> None:
    assert isinstance(await cancelled(None, closing=False), asyncio.CancelledError)
    start, content = await cancelled(None, closing=True)
    assert (start["status"], json.loads(content["body"])["code"]) == (503, 503)
    _, event = await cancelled(b"text/event-stream; charset=utf-8", closing=True)
    assert json.loads(event["body"].removeprefix(b"data: "))["error"]["message"].endswith("the request was aborted")
    assert [message["type"] for message in await cancelled(b"text/plain", closing=True)] == ["http.response.start"]


async def test_the_gate_counts_down_after_an_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("broken")

    state = GateState()
    with pytest.raises(RuntimeError):
        await call(Gate(app, state))
    assert state.in_flight == 0


async def answered_id(own: Iterable[tuple[bytes, bytes]], headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the only ``x-request-id`` of an answer whose route sends the headers ``own``."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(own)})
        await send({"type": "http.response.body", "body": b""})

    start, _ = await call(RequestIds(app), headers=headers)
    (request_id,) = [value for name, value in start["headers"] if name.lower() == b"x-request-id"]
    assert isinstance(request_id, bytes)
    return request_id


async def test_every_answer_has_an_id() -> None:
    ids = {await answered_id([(b"content-type", b"text/plain")], []) for _ in range(2)}
    assert {len(id) for id in ids} == {32}
    assert len(ids) == 2
    assert await answered_id([(b"X-Request-Id", b"own")], []) == b"own"


async def test_the_caller_s_id_comes_back() -> None:
    assert await answered_id([], [(b"x-request-id", b"caller/7")]) == b"caller/7"
    assert await answered_id([(b"x-request-id", b"own")], [(b"x-request-id", b"caller/7")]) == b"caller/7"


@pytest.mark.parametrize("header", [b"", b"a b", b"a\xe9", b"x" * 129])
async def test_what_would_spoil_a_header_or_the_log_is_no_id(header: bytes) -> None:
    assert await answered_id([(b"x-request-id", b"own")], [(b"x-request-id", header)]) == b"own"


class Panic(BaseException):
    """An error that is no ``Exception``, like the panics that libraries written in Rust raise."""


@pytest.mark.parametrize("error", [Panic("x"), ValueError("x")])
def test_what_nothing_else_answers_is_answered_in_the_usual_format(error: BaseException) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise error

    async def caught() -> list[Message]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"x-request-id", b"mine")]}
        await CatchAllErrors(fails)(scope, lambda: None, send)  # type: ignore[arg-type,return-value]
        return sent

    start, content = asyncio.run(caught())
    assert start["status"] == 500 and (b"x-request-id", b"mine") in start["headers"]
    assert json.loads(content["body"])["error"]["type"] == "InternalServerError"


@pytest.mark.parametrize("ending", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_ends_a_task_is_not_swallowed(ending: BaseException) -> None:
    async def ends(scope: Any, receive: Any, send: Any) -> None:
        raise ending

    async def caught() -> tuple[BaseException | None, list[Message]]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
            await CatchAllErrors(ends)(scope, lambda: None, send)  # type: ignore[arg-type,return-value]
        except BaseException as error:
            return error, sent
        return None, sent

    error, sent = asyncio.run(caught())
    assert error is ending and sent[0]["status"] == 500


def test_an_answer_that_has_begun_is_not_answered_again() -> None:
    async def breaks(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise Panic

    with pytest.raises(Panic):
        asyncio.run(call(CatchAllErrors(breaks)))


def test_an_application_that_sends_nothing_is_answered_for() -> None:
    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        pass

    async def sent() -> list[Message]:
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
        await CatchAllErrors(nothing)(scope, lambda: None, send)  # type: ignore[arg-type,return-value]
        return messages

    assert asyncio.run(sent())[0]["status"] == 500


def test_what_is_raised_again_after_a_whole_answer_does_not_close_the_connection() -> None:
    async def raises_again(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})
        raise ValueError

    assert len(asyncio.run(call(CatchAllErrors(raises_again)))) == 2
