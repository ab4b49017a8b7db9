"""Calls of routes from inside the process: the same code as over HTTP, without the network.

The endpoint function is called directly. Checks before it do not apply: permission to run a batch was checked when it
was created, and lines have a length limit of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import Message, Receive

from sglang_plug import EngineError, RequestError
from sglang_plug.system.library_panics import is_error
from sglang_plug_api.answers.errors import ApiError, from_exception
from sglang_plug_api.http.request_body import Endpoint
from sglang_plug_api.service.callers import Caller, acting_as
from sglang_plug_api.text.job import new_id

logger = logging.getLogger(__name__)

BUSY = (429, 503)


class EngineBusy(Exception):
    """A line has no answer yet: the engine's queue is full, or all requests were aborted while the line ran."""


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The response of a route."""

    status: int
    request_id: str
    body: Any


def find_endpoint(app: FastAPI, path: str) -> Endpoint | None:
    """Return the endpoint of ``POST path``, or ``None`` if this server has none."""
    endpoint: Endpoint | None = app.state.endpoints.get(path)
    return endpoint


def check_endpoint(app: FastAPI, path: str) -> None:
    """Raise ``ApiError`` if ``POST path`` answers no request: it does not exist, or the model does not support it."""
    endpoint = find_endpoint(app, path)
    if endpoint is None:
        raise ApiError(f"this server has no route {path}", param="endpoint")
    check = getattr(endpoint, "check", None)
    if check is None:
        return
    try:
        check()
    except ApiError as error:
        raise ApiError(f"every line of the batch would fail: {error.message}", param="endpoint") from None


async def call_route(app: FastAPI, caller: Caller, path: str, body: bytes) -> RouteAnswer:
    """Answer ``POST path`` with a JSON body, on behalf of ``caller``, who created the batch.

    Raises ``EngineBusy`` if the engine's queue is full, or if all requests were aborted before the line was complete,
    and ``EngineError`` if the engine is not running.
    """
    endpoint = find_endpoint(app, path)
    if endpoint is None:
        raise LookupError(f"there is no route POST {path}")
    try:
        with acting_as(caller):
            response = await endpoint(Request(_scope(app, path), _receive_once(body)))
    except EngineError:
        raise
    except BaseException as error:
        if not is_error(error):
            raise
        if isinstance(error, RequestError) and error.status in BUSY:
            raise EngineBusy from error
        refusal = from_exception(error)
        if refusal.status == 500:
            logger.exception("a line of a batch failed")
        return RouteAnswer(refusal.status, new_id(), refusal.body())
    return RouteAnswer(response.status_code, response.headers.get("x-request-id") or new_id(), _value(response))


def _value(response: Response) -> Any:
    text = bytes(response.body).decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _receive_once(body: bytes) -> Receive:
    """Return the ``receive`` of a client that sends its whole body at once and never disconnects."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.get_running_loop().create_future()

    return receive


def _scope(app: FastAPI, path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "app": app,
        "state": {"batch": True},
    }
