"""Responses that end early when the client disconnects.

Starlette closes an abandoned generator whenever the garbage collector gets to it, and never stops a plain handler; KV
slots must not wait for either. So this module runs both kinds of response.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from sglang_plug.system.library_panics import is_error
from sglang_plug_api.answers.errors import ApiError, error_line, from_exception
from sglang_plug_api.answers.large_json import large_json_bytes, large_json_response
from sglang_plug_api.service.gather import stop_tasks

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

CLIENT_CLOSED_REQUEST = 499
"""Status in the log of a request whose client disconnected; nobody receives it."""
DONE = b"data: [DONE]\n\n"


class ClientDisconnected(ApiError):
    """The client disconnected and no longer waits for the response."""

    def __init__(self) -> None:
        super().__init__("the client disconnected", CLIENT_CLOSED_REQUEST)


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Item]) -> Item:
    """Await ``work``, or cancel it and raise ``ClientDisconnected`` when the client disconnects.

    Call it after the body was read, for any work that takes time before a response begins.
    """
    task = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        await stop_tasks(task, disconnect)


async def response_unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Await ``work``, or cancel it when the client disconnects."""
    try:
        return await cancel_on_disconnect(request, work)
    except ClientDisconnected:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event with an ``event:`` line before its data."""

    name: str
    data: Any


class EventStream(Response):
    """Server-sent events: one ``data:`` line for each value of ``events``, then ``[DONE]`` unless ``done`` is unset.

    An exception becomes an error event in the format of the route. ``events`` is always closed before the call returns.
    """

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[Any, None], headers: dict[str, str] | None = None, *, done: bool = True
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._last = DONE if done else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end or the client disconnects."""
        producer = asyncio.ensure_future(self._produce(scope, send))
        disconnect = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((producer, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await stop_tasks(producer, disconnect)
            await self._events.aclose()

    def encode(self, data: bytes, name: str = "") -> bytes:
        """Return one event, of which ``data`` is the JSON in one line."""
        head = f"event: {name}\n".encode() if name else b""
        return head + b"data: " + data + b"\n\n"

    async def _produce(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                name, data = (event.name, event.data) if isinstance(event, NamedEvent) else ("", event)
                await _send_connected(send, _chunk(self.encode(await large_json_bytes(data), name)))
        except ClientDisconnected:
            return
        except BaseException as error:
            if not is_error(error):
                raise
            refusal = from_exception(error)
            if refusal.status == 500:
                logger.exception("a stream failed")
            await send(_chunk(self.encode(error_line(scope, refusal))))
        await send({"type": "http.response.body", "body": self._last, "more_body": False})


class JsonLines(EventStream):
    """Newline-delimited JSON: one line for each value of ``events``; in all else like ``EventStream``."""

    media_type = "application/x-ndjson"

    def __init__(self, events: AsyncGenerator[Any, None], headers: dict[str, str] | None = None) -> None:
        super().__init__(events, headers, done=False)

    def encode(self, data: bytes, name: str = "") -> bytes:
        """Return one line; lines have no names."""
        return data + b"\n"


async def respond(
    request: Request,
    streamed: bool | None,
    events: Callable[[], AsyncGenerator[Any, None]],
    answer: Callable[[], Coroutine[Any, Any, Any]],
    headers: dict[str, str] | None = None,
    *,
    done: bool = True,
    lines: bool = False,
) -> Response:
    """Stream ``events`` if ``streamed``, else return ``answer`` as JSON; either ends when the client disconnects.

    Errors before the first event are raised. ``done`` is as in ``EventStream``; with ``lines`` the stream is
    ``JsonLines``.
    """
    if streamed:
        begun = await cancel_on_disconnect(request, first_of(events()))
        return JsonLines(begun, headers) if lines else EventStream(begun, headers, done=done)

    async def whole() -> Response:
        return await large_json_response(await answer(), headers)

    return await response_unless_disconnected(request, whole())


async def first_of(events: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """Return ``events`` with the first one already fetched, so that an early error gets an error status."""
    try:
        first = await anext(events)
    except StopAsyncIteration:
        return _nothing()
    except BaseException:
        await events.aclose()
        raise
    stream = _prepend(first, events)
    await anext(stream)
    return stream


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Yield the items of several streams as they arrive, with the stream's index; all are closed at the end."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for item in only:
                yield 0, item
        return
    waiting = {asyncio.ensure_future(anext(stream)): index for index, stream in enumerate(streams)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                with contextlib.suppress(StopAsyncIteration):
                    yield index, task.result()
                    waiting[asyncio.ensure_future(anext(streams[index]))] = index
    finally:
        await stop_tasks(*waiting)
        async with contextlib.AsyncExitStack() as closing:  # closes all of them even if closing one fails
            for stream in streams:
                closing.push_async_callback(stream.aclose)


async def _prepend(first: Item, events: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    async with contextlib.aclosing(events):
        yield first  # ``first_of`` takes it: a generator that never began would not close ``events``
        yield first
        async for item in events:
            yield item


async def _nothing() -> AsyncGenerator[Any, None]:
    return
    yield


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_connected(send: Send, message: Message) -> None:
    """Send a message; raise ``ClientDisconnected`` for an ``OSError``, to keep it apart from one of the route."""
    try:
        await send(message)
    except OSError:
        raise ClientDisconnected from None


def _chunk(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
