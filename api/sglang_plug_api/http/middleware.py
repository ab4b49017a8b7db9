"""Middlewares around every route: request ids, draining, body limits, HEAD, and errors that nothing else handled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sglang_plug.system.library_panics import is_error
from sglang_plug_api.answers.errors import RETRY_AFTER, ApiError, error_line, error_response, from_exception
from sglang_plug_api.text.job import new_id

from .plugin_routes import PluginRoute

logger = logging.getLogger(__name__)

EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"
REQUEST_ID = "x-request-id"
ID_HEADER = REQUEST_ID.encode()
CLIENT_ID = re.compile(rb"[!-~]{1,128}")
"""Pattern of request ids that are accepted from clients: they go into headers and into the log."""
CLOSING_HEADERS: Mapping[str, str] = {"connection": "close", "retry-after": str(RETRY_AFTER)}
"""Headers of refusals while the server shuts down: another one, or this one after a restart, may serve."""


class CatchAllErrors:
    """Outermost layer: a request that nothing else has answered gets status 500 in the format of all errors.

    Starlette handles every ``Exception``; this layer is for panics of native libraries, for errors while an error is
    answered, and for an application that returns without a response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = complete = False

        async def tracked_send(message: Message) -> None:
            nonlocal started, complete
            started = True
            await send(message)
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await self._app(scope, receive, tracked_send)
        except BaseException as error:
            if complete and is_error(error):
                return  # Starlette raises errors again after answering; the server would close the connection
            if started:
                raise  # the server closes the connection: the response is incomplete
            await failure(scope, error)(scope, receive, send)
            if not is_error(error):
                raise
        else:
            if not started:
                await failure(scope, RuntimeError("no answer was sent"))(scope, receive, send)


def failure(scope: Scope, error: BaseException) -> Response:
    """Log an error that is not the client's fault, and return the response to it with the request id."""
    id = (client_request_id(scope) or new_id().encode()).decode("ascii")
    logger.error("%s %r failed, request %s", scope["method"], scope["path"], id, exc_info=error)
    response = error_response(scope, from_exception(error))
    response.headers[REQUEST_ID] = id
    return response


class RequestIds:
    """Puts ``x-request-id`` on every response: the client's if the request has one, the route's own, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client_id = client_request_id(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [
                    header
                    for header in message.get("headers", ())
                    if client_id is None or header[0].lower() != ID_HEADER
                ]
                if all(name.lower() != ID_HEADER for name, _ in headers):
                    headers.append((ID_HEADER, client_id or new_id().encode()))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_with_id)


def id_header(id: str) -> dict[str, str]:
    """Return the header with the id of a request; characters that headers cannot contain are percent-encoded."""
    return {REQUEST_ID: quote(id, safe=string.punctuation, errors="replace")}


def client_request_id(scope: Scope) -> bytes | None:
    """Return the ``X-Request-Id`` of a request, or ``None`` if it has none that may be repeated."""
    sent_id = next((value for name, value in scope["headers"] if name == ID_HEADER), b"")
    return sent_id if CLIENT_ID.fullmatch(sent_id) else None


class Gate:
    """Counts requests in flight, and refuses new ones while the server shuts down."""

    def __init__(self, app: ASGIApp, state: GateState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self._state
        if state.closing:
            refusal = ApiError("the server is shutting down", 503, headers=CLOSING_HEADERS)
            await error_response(scope, refusal)(scope, receive, send)
            return
        started: Message | None = None

        async def tracked_send(message: Message) -> None:
            nonlocal started
            started = message if message["type"] == "http.response.start" else started
            await send(message)

        with state.request():
            try:
                await self._app(scope, receive, tracked_send)
            except asyncio.CancelledError:
                if not state.closing:
                    raise
                with contextlib.suppress(asyncio.CancelledError):  # again: the client does not read the answer
                    await _answer_aborted(started, scope, receive, send)


async def _answer_aborted(started: Message | None, scope: Scope, receive: Receive, send: Send) -> None:
    """End the response to a request that the shutdown aborted: with status 503, or its stream with an error event."""
    refusal = ApiError("the server is shutting down; the request was aborted", 503, headers=CLOSING_HEADERS)
    if started is None:
        await error_response(scope, refusal)(scope, receive, send)
        return
    kind, line = Headers(raw=started["headers"]).get("content-type", ""), error_line(scope, refusal)
    if kind.startswith(EVENT_STREAM):
        await send({"type": "http.response.body", "body": b"data: " + line + b"\n\n"})
    elif kind.startswith(JSON_LINES):
        await send({"type": "http.response.body", "body": line + b"\n"})


class GateState:
    """State shared by the gate and the code that stops the server."""

    def __init__(self) -> None:
        self.closing = False
        self._requests = dict[object, asyncio.Task[object] | None]()

    @property
    def in_flight(self) -> int:
        """Number of requests inside the gate."""
        return len(self._requests)

    @property
    def tasks(self) -> list[asyncio.Task[object]]:
        """The tasks that answer the requests inside the gate."""
        return list({task for task in self._requests.values() if task is not None})

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request, which the current task answers, until the context ends."""
        with self._counted(asyncio.current_task()):
            yield

    @contextlib.contextmanager
    def background_work(self) -> Iterator[None]:
        """Count something that the server is to finish before it stops, and that is not aborted with the requests."""
        with self._counted(None):
            yield

    @contextlib.contextmanager
    def _counted(self, task: asyncio.Task[object] | None) -> Iterator[None]:
        key = object()
        self._requests[key] = task
        try:
            yield
        finally:
            del self._requests[key]


class BodyLimit:
    """Answers 413 to bodies over ``limit`` bytes, before or while they are read, and 408 to slow ones.

    Args:
        app: the next ASGI application.
        limit: bytes.
        timeout: seconds in which the body must arrive.
        larger: maps a path to the limit in bytes of its route, which applies if it is the larger one.
    """

    def __init__(self, app: ASGIApp, limit: int, timeout: float, larger: Mapping[str, int] | None = None) -> None:
        self._app = app
        self._limit = limit
        self._timeout = timeout
        self._larger = {} if larger is None else larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = max(self._limit, self._larger.get(scope["path"], 0))
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or int(declared) > limit:
            await error_response(scope, self._refusal(limit))(scope, receive, send)
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
        return ApiError(f"the body is larger than {limit} bytes, the limit of {option}", 413)


class HeadAsGet:
    """Answers HEAD as GET, and leaves out the body.

    Args:
        app: the application inside.
        routes: those that answer HEAD on their own, which are called as they are; may be filled later.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[PluginRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or any(route.takes("HEAD", scope["path"]) for route in self._routes):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)
