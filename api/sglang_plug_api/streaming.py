"""Answers that end early when the client leaves.

Starlette closes an abandoned generator whenever the garbage collector gets to it, and never stops a plain
handler; KV slots must not wait for either. So both kinds of answer are driven from here.
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

from .errors import ApiError, from_exception, json_bytes, json_response

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

CLIENT_LEFT = 499
"""Status in the log of a request whose client left; nobody receives it."""
DONE = b"data: [DONE]\n\n"


class ClientLeft(ApiError):
    """Nobody waits for the answer any more."""

    def __init__(self) -> None:
        super().__init__("the client left", CLIENT_LEFT)


async def while_connected(request: Request, work: Coroutine[Any, Any, Item]) -> Item:
    """Await ``work``, or cancel it and raise ``ClientLeft`` when the client leaves.

    To be called once the body was read, for whatever takes its time before an answer begins.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        await _stop(task, gone)


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Await ``work``, or cancel it when the client leaves."""
    try:
        return await while_connected(request, work)
    except ClientLeft:
        return Response(status_code=CLIENT_LEFT)


@dataclass(frozen=True, slots=True)
class NamedEvent:
    """An event with an ``event:`` line before its data."""

    name: str
    data: Any


class EventStream(Response):
    """Server-sent events: one ``data:`` line for each value of ``events``, then ``[DONE]`` unless ``done`` is unset.

    An exception becomes an error event. ``events`` is closed before this returns, whatever happens.
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
        """Send events until they end or the client leaves."""
        producer = asyncio.ensure_future(self._produce(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((producer, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(producer, gone)
            await self._events.aclose()

    async def _produce(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await send(_chunk(_lines(event)))
        except OSError:
            return  # the client left
        except Exception as error:
            refusal = from_exception(error)
            if refusal.status == 500:
                logger.exception("a stream failed")
            await send(_chunk(_lines(refusal.body())))
        await send({"type": "http.response.body", "body": self._last, "more_body": False})


async def respond(
    request: Request,
    streamed: bool | None,
    events: Callable[[], AsyncGenerator[Any, None]],
    answer: Callable[[], Coroutine[Any, Any, Any]],
    headers: dict[str, str] | None = None,
    *,
    done: bool = True,
) -> Response:
    """``events`` as they come if ``streamed``, otherwise ``answer`` as JSON; either ends when the client leaves.

    What refuses before the first event is raised. ``done`` as in ``EventStream``.
    """
    if streamed:
        return EventStream(await while_connected(request, first_of(events())), headers, done=done)

    async def whole() -> Response:
        return json_response(await answer(), headers=headers)

    return await unless_disconnected(request, whole())


async def first_of(events: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    """``events``, with the first one fetched already: what is refused at once is an error status, not an event."""
    try:
        first = await anext(events)
    except StopAsyncIteration:
        return _nothing()
    except BaseException:
        await events.aclose()
        raise
    found = _prepend(first, events)
    await anext(found)
    return found


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[tuple[int, Item], None]:
    """Items of several streams as they come, with the stream's index; all are closed at the end."""
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
        await _stop(*waiting)
        for stream in streams:
            await stream.aclose()


async def _prepend(first: Item, rest: AsyncGenerator[Item, None]) -> AsyncGenerator[Item, None]:
    async with contextlib.aclosing(rest):
        yield first  # taken at once: a generator that never began would not close ``rest``
        yield first
        async for item in rest:
            yield item


async def _nothing() -> AsyncGenerator[Any, None]:
    return
    yield


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel what still runs and wait until it has; errors of others have been told already."""
    for task in tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _lines(event: Any) -> bytes:
    name, data = (event.name, event.data) if isinstance(event, NamedEvent) else ("", event)
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json_bytes(data) + b"\n\n"


def _chunk(data: bytes) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": True}
