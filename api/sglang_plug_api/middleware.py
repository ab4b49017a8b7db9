"""What every HTTP request passes before its route: its id, draining, and the size of its body."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, json_bytes
from .job import new_id

EVENT_STREAM = "text/event-stream"
REQUEST_ID = "x-request-id"
ID_HEADER = REQUEST_ID.encode()
CALLERS_ID = re.compile(rb"[!-~]{1,128}")
"""What is taken from a caller as a name: it goes into headers and into the log."""


class RequestIds:
    """Puts ``x-request-id`` on every answer: the caller's if the request has one, the route's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = callers_id(scope)

        async def labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [one for one in message.get("headers", ()) if given is None or one[0].lower() != ID_HEADER]
                if all(name.lower() != ID_HEADER for name, _ in headers):
                    headers.append((ID_HEADER, given or new_id().encode()))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, labelled)


def callers_id(scope: Scope) -> bytes | None:
    """``X-Request-Id`` of a request, if it is one that can be repeated."""
    given = next((value for name, value in scope["headers"] if name == ID_HEADER), b"")
    return given if CALLERS_ID.fullmatch(given) else None


class Gate:
    """Counts requests in flight, and turns new ones away while the server stops."""

    def __init__(self, app: ASGIApp, state: GateState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self._state
        if state.closing:
            refusal = ApiError("the server is shutting down", 503, headers={"connection": "close"})
            await refusal.response()(scope, receive, send)
            return
        state.in_flight += 1
        started: Message | None = None

        async def watched(message: Message) -> None:
            nonlocal started
            started = message if message["type"] == "http.response.start" else started
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:
            if not state.closing:
                raise
            await _tell_abort(started, scope, receive, send)
        finally:
            state.in_flight -= 1


async def _tell_abort(started: Message | None, scope: Scope, receive: Receive, send: Send) -> None:
    """End the answer to a request that the shutdown aborted: with status 503, or its stream with an error event."""
    refusal = ApiError("the server is shutting down; the request was aborted", 503, headers={"connection": "close"})
    if started is None:
        await refusal.response()(scope, receive, send)
    elif Headers(raw=started["headers"]).get("content-type", "").startswith(EVENT_STREAM):
        await send({"type": "http.response.body", "body": b"data: " + json_bytes(refusal.body()) + b"\n\n"})


class GateState:
    """Shared by the gate and whoever stops the server."""

    def __init__(self) -> None:
        self.closing = False
        self.in_flight = 0


class BodyLimit:
    """Answers 413 to bodies over ``limit`` bytes, before or while they are read, and 408 to slow ones.

    Args:
        app: what comes after.
        limit: bytes.
        timeout: seconds in which the body must arrive.
        larger: path -> bytes, of routes that have a limit of their own if that is larger.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout: float, larger: Mapping[str, int] | None = None) -> None:
        self._app, self._limit, self._timeout = app, limit, timeout
        self._larger = {} if larger is None else larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = max(self._limit, self._larger.get(scope["path"], 0))
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > limit:
            await self._refusal(limit).response()(scope, receive, send)
            return
        await self._app(scope, self._limited(receive, limit), send)

    def _limited(self, receive: Receive, limit: int) -> Receive:
        deadline = asyncio.get_running_loop().time() + self._timeout
        taken, complete = 0, False

        async def limited() -> Message:
            nonlocal taken, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise ApiError(f"the body did not arrive within {self._timeout:g} seconds", 408) from None
            taken += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if taken > limit:
                raise self._refusal(limit)
            return message

        return limited

    def _refusal(self, limit: int) -> ApiError:
        option = "--max-request-bytes" if limit == self._limit else "the server"
        return ApiError(f"the body is larger than {limit} bytes, the most that {option} allows", 413)
