"""Reading of request bodies: format and content are checked here, once for all routes."""

from __future__ import annotations

import json
import math
import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from sglang_plug.plugins.request_fields import RequestFields
from sglang_plug_api.answers.errors import SHOWN, ApiError, from_validation
from sglang_plug_api.protocol.base import validation_context
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.service.request_context import set_request_context
from sglang_plug_api.text.job import new_id

from .middleware import client_request_id
from .streaming import CLIENT_CLOSED_REQUEST

Body = TypeVar("Body", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]

JSON_TYPES = ("application/json", "text/json", "application/x-ndjson")
FORM = "application/x-www-form-urlencoded"
"""Content type that ``curl -d`` sends by default."""
MAX_TEXTS = 1 << 18
"""Maximum number of strings of a body, field names included. All sizes are limited: parsing blocks the event loop."""
MAX_NAMES = 1 << 17
"""Maximum number of fields of all objects of a body."""
MAX_CONTAINERS = 1 << 17
"""Maximum number of lists and objects of a body."""
MAX_ENTRIES = 1 << 21
"""Maximum number of entries of all lists and objects of a body; so many can only be token ids."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""Pattern of a string. An unterminated one extends to the end, else the search behind each quote would be quadratic."""
ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
MAYBE_INFINITE = (b"NaN", b"Infinity", b"0e000", b"0e+000", b"0" * 200)
"""Forms of infinite numbers after all digits are made alike."""


async def read_body(request: Request, model: type[Body]) -> Body:
    """Return the body as ``model``. Raises ``ApiError`` 400, 408, 413 or 415 (middleware raises 408 and 413)."""
    _check_type(request)
    _check_encoding(request)
    try:
        raw = (await request.body()).removeprefix(BOM_UTF8)
    except ClientDisconnect:
        raise ApiError("the client disconnected before the body was complete", CLIENT_CLOSED_REQUEST) from None
    if not raw.strip():
        raise ApiError("the body is empty; a JSON object is expected")
    bare = _check_size(raw)
    try:
        body = model.model_validate_json(raw, context=_context(request))
        _check_finite(raw, bare)
        _set_request_context(request, body)
        return _with_request_id(request, body)
    except ValidationError as error:
        raise from_validation(error) from None
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not valid JSON: {str(error)[:200]}") from None


def _set_request_context(request: Request, body: BaseModel) -> None:
    """Set the context of the request from its body and headers."""
    app = request.scope.get("app")
    key = None if app is None else getattr(app.state, "fairness_key", None)
    if key is not None:
        batch = bool(request.scope.get("state", {}).get("batch"))
        set_request_context(key.request_context(current_caller(), request.headers, body, batch=batch))


def _context(request: Request) -> dict[str, RequestFields] | None:
    """Return the context in which the server's bodies are validated: the request fields of plugins."""
    app = request.scope.get("app")
    fields = None if app is None else getattr(app.state, "request_fields", None)
    return None if fields is None else validation_context(fields)


def _check_size(raw: bytes) -> bytes:
    """Return ``raw``, without its strings if they had to be removed to count the rest.

    Raises ``ApiError`` for a body that would take seconds to parse or validate because it has millions of small values.
    """
    if raw.count(b'"') <= 2 * MAX_TEXTS and not _excess(raw):
        return raw
    bare, texts = TEXT.subn(b"", raw, count=MAX_TEXTS + 1)
    excess = f"{MAX_TEXTS} texts and names" if texts > MAX_TEXTS else _excess(bare)
    if excess:
        raise ApiError(f"the body has more than {excess}, the maximum; send several smaller ones")
    return bare


def _excess(raw: bytes) -> str:
    """Describe the limit that ``raw`` exceeds, counting inside strings as well; empty if none."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:
        return f"{MAX_CONTAINERS} lists and objects"
    if raw.count(b":") > MAX_NAMES:
        return f"{MAX_NAMES} fields of objects"
    return f"{MAX_ENTRIES} entries of lists and objects" if raw.count(b",") > MAX_ENTRIES else ""


def _check_finite(raw: bytes, bare: bytes) -> None:
    """Raise ``ApiError`` for NaN and infinite numbers, which fields without a type of their own would accept.

    ``bare`` is ``raw``, with or without its strings.
    """
    alike = bare.translate(ALIKE)
    if not any(form in alike for form in MAYBE_INFINITE):
        return
    for path in _infinite(json.loads(raw)):
        name = ".".join(path)[:SHOWN]
        raise ApiError(f"{name}: NaN and infinite numbers are not allowed", param=name)


def _infinite(value: Any, *path: str) -> Iterator[tuple[str, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        if isinstance(inner, float):
            if not math.isfinite(inner):
                yield (*path, str(name))
        elif isinstance(inner, dict | list):
            yield from _infinite(inner, *path, str(name))


def _with_request_id(request: Request, body: Body) -> Body:
    """Return ``body`` with the request id of its header, unless the body has an id itself.

    A proxy repeats the header when it tries again, and two requests in flight must not share an id.
    """
    client_id = client_request_id(request.scope)
    nameless = "rid" in type(body).model_fields and not (getattr(body, "rid", 1) or getattr(body, "request_id", None))
    if client_id is None or not nameless:
        return body
    return body.model_copy(update={"rid": f"{client_id.decode('ascii')}-{new_id()[:8]}"})


def read_query(request: Request, model: type[Body]) -> Body:
    """Return the query as ``model``. Raises ``ApiError`` 400."""
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise from_validation(error) from None


def _check_type(request: Request) -> None:
    """Raise unless the body is JSON; JSON without a type, or labelled a form by curl, is accepted except from browsers.

    Browsers send both without a preflight.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in JSON_TYPES or kind.endswith("+json"):
        return
    if kind in ("", FORM):
        if "origin" in request.headers or "sec-fetch-site" in request.headers:
            raise ApiError(f"a browser must send JSON as application/json, not as {kind or 'nothing'}", 415)
        return
    raise ApiError(f"the body must be JSON with content type application/json, not {kind[:80]!r}", 415)


def _check_encoding(request: Request) -> None:
    """Raise if the body is compressed: a few bytes could unpack to gigabytes."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(f"the body must be plain JSON, without content encoding {encoding[:80]!r}", 415)


def takes(router: APIRouter, path: str, model: type[BaseModel], **options: Any) -> Callable[[Endpoint], Endpoint]:
    """Register a POST endpoint that reads ``model`` itself, with the model in the OpenAPI document.

    ``check`` raises ``ApiError`` if the served model can answer no such request: a batch of them is refused then.
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
