"""Answers end when the client disconnects, and their streams are always closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from fastapi import Request, Response

from sglang_plug import RequestError
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.streaming import (
    CLIENT_CLOSED_REQUEST,
    DONE,
    EventStream,
    JsonLines,
    NamedEvent,
    first_of,
    merged,
    respond,
    response_unless_disconnected,
)


class Source:
    """A stream of values that records whether it was closed; an exception among the values is raised."""

    def __init__(self, *values: Any, endless: bool = False) -> None:
        self.values, self.endless, self.closed, self.taken = values, endless, False, 0

    async def stream(self) -> AsyncGenerator[Any, None]:
        try:
            for value in self.values:
                await asyncio.sleep(0)
                if isinstance(value, Exception):
                    raise value
                self.taken += 1
                yield value
            if self.endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


class Connection:
    """The ASGI connection of one client."""

    def __init__(self, *, fails_after: int | None = None) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self._fails_after = fails_after

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await asyncio.sleep(0)
        if self._fails_after is not None and len(self.sent) >= self._fails_after:
            raise OSError("broken pipe")
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


async def answer(source: Source, connection: Connection) -> None:
    await EventStream(source.stream(), {"x-a": "b"})({"type": "http"}, connection.receive, connection.send)


async def test_events_are_framed_and_end_with_done() -> None:
    source, connection = Source({"a": "ü"}, [1]), Connection()
    await answer(source, connection)
    assert connection.body == 'data: {"a":"ü"}\n\ndata: [1]\n\n'.encode() + DONE
    start, last = connection.sent[0], connection.sent[-1]
    headers = dict(start["headers"])
    assert (start["status"], headers[b"x-a"], headers[b"cache-control"]) == (200, b"b", b"no-cache")
    assert headers[b"content-type"].startswith(b"text/event-stream") and b"content-length" not in headers
    assert not last["more_body"]
    assert source.closed


@pytest.mark.parametrize(
    ("error", "status", "visible"),
    [(RequestError("late"), 400, True), (ApiError("x", 503), 503, True), (RuntimeError("secret"), 500, False)],
)
async def test_an_exception_becomes_an_event(error: Exception, status: int, visible: bool) -> None:
    source, connection = Source({"a": 1}, error), Connection()
    await answer(source, connection)
    *_, event, done, _ = connection.body.split(b"\n\n")
    body = json.loads(event.removeprefix(b"data: "))
    assert (body["code"], str(error) in body["message"]) == (status, visible)
    assert done == b"data: [DONE]"
    assert source.closed


async def test_the_source_is_closed_when_the_client_leaves() -> None:
    source, connection = Source({"a": 1}, endless=True), Connection()
    task = asyncio.create_task(answer(source, connection))
    while not connection.body:
        await asyncio.sleep(0)
    connection.gone.set()
    await task
    assert source.closed
    assert DONE not in connection.body


async def test_the_source_is_closed_when_sending_fails_or_the_task_is_cancelled() -> None:
    source = Source(*range(100))
    await answer(source, Connection(fails_after=3))
    assert source.closed and source.taken < 10
    source, connection = Source({"a": 1}, endless=True), Connection()
    task = asyncio.create_task(answer(source, connection))
    while not connection.body:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.closed


def request_of(connection: Connection) -> Request:
    return Request({"type": "http", "headers": []}, connection.receive)


async def test_plain_work_is_awaited() -> None:
    async def work() -> Response:
        await asyncio.sleep(0)
        return Response("done")

    assert (await response_unless_disconnected(request_of(Connection()), work())).body == b"done"


async def test_plain_work_fails_with_its_own_error() -> None:
    async def work() -> Response:
        raise ApiError("no")

    with pytest.raises(ApiError, match="no"):
        await response_unless_disconnected(request_of(Connection()), work())


async def test_plain_work_is_cancelled_when_the_client_leaves() -> None:
    ended: list[str] = []

    async def work() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        raise AssertionError("never")

    connection = Connection()
    task = asyncio.create_task(response_unless_disconnected(request_of(connection), work()))
    await asyncio.sleep(0)
    connection.gone.set()
    assert (await task).status_code == CLIENT_CLOSED_REQUEST
    assert ended == ["cancelled"]


@pytest.mark.parametrize("stream", [False, True])
async def test_who_leaves_before_anything_came_is_noticed(stream: bool) -> None:
    source, connection = Source(endless=True), Connection()

    async def whole() -> Any:
        return [event async for event in source.stream()]

    task = asyncio.create_task(respond(request_of(connection), stream, source.stream, whole))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    connection.gone.set()
    if stream:
        with pytest.raises(ApiError) as caught:
            await task
        assert caught.value.status == CLIENT_CLOSED_REQUEST
    else:
        assert (await task).status_code == CLIENT_CLOSED_REQUEST
    assert stream is False or source.closed


async def test_first_of_fetches_one_and_loses_none() -> None:
    source = Source(1, 2, 3)
    events = await first_of(source.stream())
    assert source.taken == 1
    assert [event async for event in events] == [1, 2, 3]
    assert [event async for event in await first_of(Source().stream())] == []


async def test_first_of_raises_what_comes_first_and_closes() -> None:
    source = Source(RequestError("refused"))
    with pytest.raises(RequestError):
        await first_of(source.stream())
    assert source.closed
    source = Source(1, endless=True)
    events = await first_of(source.stream())
    assert await anext(events) == 1
    await events.aclose()
    assert source.closed


@pytest.mark.parametrize("count", [1, 3])
async def test_merged_gives_every_item_with_its_index(count: int) -> None:
    sources = [Source(*range(index * 10, index * 10 + 4)) for index in range(count)]
    received: dict[int, list[int]] = {index: [] for index in range(count)}
    async for index, item in merged([source.stream() for source in sources]):
        received[index].append(item)
    assert received == {index: list(range(index * 10, index * 10 + 4)) for index in range(count)}
    assert all(source.closed for source in sources)


@pytest.mark.parametrize("count", [1, 3])
async def test_merged_closes_all_when_left_early(count: int) -> None:
    sources = [Source(1, 2, endless=True) for _ in range(count)]
    stream = merged([source.stream() for source in sources])
    await anext(stream)
    await stream.aclose()
    assert all(source.closed for source in sources)


async def test_merged_closes_the_others_when_one_fails() -> None:
    sources = [Source(1, endless=True), Source(1, RequestError("bad")), Source(endless=True)]
    with pytest.raises(RequestError, match="bad"):
        async for _ in merged([source.stream() for source in sources]):
            pass
    assert all(source.closed for source in (sources[0], sources[1]))


async def test_an_event_may_have_a_name_and_a_stream_no_end_marker() -> None:
    connection = Connection()
    events = Source(NamedEvent("a.b", {"x": 1}), {"y": 2}).stream()
    await EventStream(events, done=False)({}, connection.receive, connection.send)
    assert connection.body == b'event: a.b\ndata: {"x":1}\n\ndata: {"y":2}\n\n'
    assert connection.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_that_is_left_before_it_began_is_closed() -> None:
    source = Source(1, 2)
    stream = await first_of(source.stream())
    await stream.aclose()
    assert source.closed


async def test_named_events_and_streams_without_an_end_mark() -> None:
    connection, source = Connection(), Source(NamedEvent("tick", {"a": 1}), {"b": 2})
    await EventStream(source.stream(), done=False)({"type": "http"}, connection.receive, connection.send)
    assert connection.body == b'event: tick\ndata: {"a":1}\n\ndata: {"b":2}\n\n'
    assert not connection.sent[-1]["more_body"]


async def test_one_answer_either_whole_or_streamed() -> None:
    async def whole() -> dict[str, Any]:
        return {"a": 1}

    source, request, headers = Source({"b": 2}), request_of(Connection()), {"x-a": "b"}
    answered = await respond(request, None, source.stream, whole, headers)
    assert (answered.body, answered.headers["x-a"], source.taken) == (b'{"a":1}', "b", 0)
    streamed, connection = await respond(request, True, source.stream, whole, headers), Connection()
    assert (source.taken, streamed.headers["x-a"]) == (1, "b")
    await streamed({"type": "http"}, connection.receive, connection.send)
    assert connection.body == b'data: {"b":2}\n\n' + DONE
    refusing = Source(ApiError("no"))
    with pytest.raises(ApiError, match="no"):
        await respond(request, True, refusing.stream, whole)
    assert refusing.closed


async def lines_of(source: Source, connection: Connection) -> list[Any]:
    await JsonLines(source.stream(), {"x-a": "b"})({"type": "http"}, connection.receive, connection.send)
    return [json.loads(line) for line in connection.body.splitlines()]


async def test_lines_of_json_have_no_frame_and_no_end_mark() -> None:
    source, connection = Source({"a": "ü\n"}, [1]), Connection()
    assert await lines_of(source, connection) == [{"a": "ü\n"}, [1]]
    assert connection.body.endswith(b"[1]\n")
    headers = dict(connection.sent[0]["headers"])
    assert headers[b"content-type"] == b"application/x-ndjson" and headers[b"x-a"] == b"b"
    assert b"content-length" not in headers and source.closed


async def test_an_exception_becomes_a_line() -> None:
    source, connection = Source({"a": 1}, RequestError("late")), Connection()
    first, error = await lines_of(source, connection)
    assert (first, error["code"], error["message"]) == ({"a": 1}, 400, "late")
    assert source.closed


async def test_the_source_of_lines_is_closed_when_the_client_leaves() -> None:
    source, connection = Source({"a": 1}, endless=True), Connection()
    task = asyncio.create_task(lines_of(source, connection))
    while not connection.body:
        await asyncio.sleep(0)
    connection.gone.set()
    await task
    assert source.closed
