"""Calling a route from inside: the same code that answers over HTTP, without the way there.

The endpoint function is called as it is. What lies before it on the network does not apply: who may run a batch
was settled when it was made, and lines have a length limit of their own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import Message, Receive

from sglang_plug import RequestError
from sglang_plug.engine.client import EngineError
from sglang_plug_api.bodies import Endpoint
from sglang_plug_api.errors import ApiError, from_exception
from sglang_plug_api.job import new_id

logger = logging.getLogger(__name__)

BUSY = 503


class Busy(Exception):
    """The engine takes nothing at the moment."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route answered."""

    status: int
    request_id: str
    body: Any


def endpoint_of(app: FastAPI, path: str) -> Endpoint | None:
    """The function behind ``POST path``, if this server has it."""
    found: Endpoint | None = app.state.endpoints.get(path)
    return found


def check_endpoint(app: FastAPI, path: str) -> None:
    """Raises ``ApiError`` if ``POST path`` can answer nothing: this server has it not, or its model cannot serve it."""
    endpoint = endpoint_of(app, path)
    if endpoint is None:
        raise ApiError(f"this server has no route {path}", param="endpoint")
    check = getattr(endpoint, "check", None)
    if check is None:
        return
    try:
        check()
    except ApiError as error:
        raise ApiError(f"every line of the batch would fail: {error.message}", param="endpoint") from None


async def call(app: FastAPI, path: str, body: bytes) -> Answer:
    """Answer ``POST path`` with a JSON body.

    Raises ``Busy`` if the engine's queue is full and ``EngineError`` if the engine is gone: neither is an answer.
    """
    endpoint = endpoint_of(app, path)
    if endpoint is None:
        raise LookupError(f"there is no route POST {path}")
    try:
        response = await endpoint(Request(_scope(app, path), _body_then_silence(body)))
    except EngineError:
        raise
    except Exception as error:
        if isinstance(error, RequestError) and error.status == BUSY:
            raise Busy from error
        refusal = from_exception(error)
        if refusal.status == 500:
            logger.exception("a line of a batch failed")
        return Answer(refusal.status, new_id(), refusal.body())
    return Answer(response.status_code, response.headers.get("x-request-id") or new_id(), _value(response))


def _value(response: Response) -> Any:
    text = bytes(response.body).decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _body_then_silence(body: bytes) -> Receive:
    """A client that sends everything at once, and never leaves."""
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
        "state": {},
    }
