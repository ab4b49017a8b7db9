"""Reading a request's body: its form and content are checked here, once for all routes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from .errors import SHOWN, ApiError, from_validation
from .job import new_id
from .middleware import callers_id
from .streaming import CLIENT_LEFT

Body = TypeVar("Body", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]

JSON_TYPES = ("application/json", "text/json", "application/x-ndjson")
FORM = "application/x-www-form-urlencoded"
"""What ``curl -d`` sends when no type is given."""
MAX_CONTAINERS = 1 << 20
"""Lists and objects of a body. Millions of empty ones are read in seconds, in which nobody is served."""
TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
MAYBE_INFINITE = re.compile(rb"NaN|Infinity|[0-9.][eE]\+?[0-9]{3}|[0-9]{200}")


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body as ``model``. Raises ``ApiError`` 400, 408, 413 or 415 (408 and 413 come from the middleware)."""
    _check_type(request)
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise ApiError("the client left before the body was complete", CLIENT_LEFT) from None
    if not raw.strip():
        raise ApiError("the body is empty; a JSON object is expected")
    _check_containers(raw)
    try:
        body = model.model_validate_json(raw)
        _check_finite(raw)
        return _named(request, body)
    except ValidationError as error:
        raise from_validation(error) from None
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not valid JSON: {str(error)[:200]}") from None


def _check_containers(raw: bytes) -> None:
    if _containers(raw) > MAX_CONTAINERS and _containers(TEXT.sub(b"", raw)) > MAX_CONTAINERS:
        raise ApiError(f"the body has more than {MAX_CONTAINERS} lists and objects, the most that are read")


def _containers(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def _check_finite(raw: bytes) -> None:
    """Fields without a type of their own (schemas, metadata) take what JSON has no words for, unless it is refused."""
    if MAYBE_INFINITE.search(raw) is None:
        return
    for place in _infinite(json.loads(raw)):
        where = ".".join(place)[:SHOWN]
        raise ApiError(f"{where}: NaN and infinite numbers are not allowed", param=where)


def _infinite(value: Any, *place: str) -> Iterator[tuple[str, ...]]:
    if isinstance(value, float) and not math.isfinite(value):
        yield place
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _infinite(inner, *place, name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _infinite(inner, *place, str(index))


def _named(request: Request, body: Body) -> Body:
    """``body``, with the name that the caller gave it in a header if it has none inside.

    What hands on requests repeats the header when it tries again, and two in flight must not have one name.
    """
    given = callers_id(request.scope)
    nameless = "rid" in type(body).model_fields and not (getattr(body, "rid", 1) or getattr(body, "request_id", None))
    if given is None or not nameless:
        return body
    return body.model_copy(update={"rid": f"{given.decode('ascii')}-{new_id()[:8]}"})


def read_query(request: Request, model: type[Body]) -> Body:
    """The query as ``model``. Raises ``ApiError`` 400."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise from_validation(error) from None


def _check_type(request: Request) -> None:
    """JSON; also JSON without a type, or that curl labels a form, but not from a browser: it sends both unasked."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in JSON_TYPES or kind.endswith("+json"):
        return
    if kind in ("", FORM):
        if "origin" in request.headers or "sec-fetch-site" in request.headers:
            raise ApiError(f"a browser must send JSON as application/json, not as {kind or 'nothing'}", 415)
        return
    raise ApiError(f"the body must be JSON with content type application/json, not {kind[:80]!r}", 415)


def refuse_other_pages(request: Request) -> None:
    """For routes that need no body: a page of another origin must not call them. Raises ``ApiError`` 403.

    Browsers say where a request comes from; what a visitor types, other programs and the server's own pages pass.
    """
    site = request.headers.get("sec-fetch-site")
    if site in ("cross-site", "same-site") or (site is None and "origin" in request.headers):
        raise ApiError("pages of other origins may not call this", 403)


def takes(router: APIRouter, path: str, model: type[BaseModel], **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Register a POST endpoint that reads ``model`` itself, with the model in the OpenAPI document.

    ``check`` raises ``ApiError`` if the served model can answer no such request: then a batch of them is refused.
    """
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    methods, check = options.pop("methods", ["POST"]), options.pop("check", None)

    def register(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__.update({"body_model": model, "check": check})
        router.add_api_route(
            path, endpoint, methods=methods, openapi_extra={"requestBody": body}, response_model=None, **options
        )
        return endpoint

    return register
