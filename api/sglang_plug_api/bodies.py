"""Reading a request's body: its form and content are checked here, once for all routes."""

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

from .errors import SHOWN, ApiError, from_validation
from .job import new_id
from .middleware import callers_id
from .streaming import CLIENT_LEFT

Body = TypeVar("Body", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]

JSON_TYPES = ("application/json", "text/json", "application/x-ndjson")
FORM = "application/x-www-form-urlencoded"
"""What ``curl -d`` sends when no type is given."""
MAX_TEXTS = 1 << 18
"""Texts of a body, names of fields included. Each costs time in which nobody is served, and so do the others here."""
MAX_NAMES = 1 << 17
"""Fields of all objects of a body."""
MAX_CONTAINERS = 1 << 17
"""Lists and objects of a body."""
MAX_ENTRIES = 1 << 21
"""Entries of all lists and objects of a body; nearly all of them can only be token ids."""
TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""One that does not end goes to the end of the body; looked for behind each quote in it, it would take for ever."""
ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
MAYBE_INFINITE = (b"NaN", b"Infinity", b"0e000", b"0e+000", b"0" * 200)
"""What infinite numbers look like once digits are made alike."""


async def read_body(request: Request, model: type[Body]) -> Body:
    """The body as ``model``. Raises ``ApiError`` 400, 408, 413 or 415 (408 and 413 come from the middleware)."""
    _check_type(request)
    _check_encoding(request)
    try:
        raw = (await request.body()).removeprefix(BOM_UTF8)
    except ClientDisconnect:
        raise ApiError("the client left before the body was complete", CLIENT_LEFT) from None
    if not raw.strip():
        raise ApiError("the body is empty; a JSON object is expected")
    bare = _weighed(raw)
    try:
        body = model.model_validate_json(raw)
        _check_finite(raw, bare)
        return _named(request, body)
    except ValidationError as error:
        raise from_validation(error) from None
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not valid JSON: {str(error)[:200]}") from None


def _weighed(raw: bytes) -> bytes:
    """``raw``, without its texts if these had to be left out to see what else there is.

    Raises ``ApiError`` for what is read, or found wrong, in seconds: a body of a few bytes for each of its millions of
    values.
    """
    if raw.count(b'"') <= 2 * MAX_TEXTS and not _excess(raw):
        return raw
    bare, texts = TEXT.subn(b"", raw, count=MAX_TEXTS + 1)
    excess = f"{MAX_TEXTS} texts and names" if texts > MAX_TEXTS else _excess(bare)
    if excess:
        raise ApiError(f"the body has more than {excess}, the most that are read; send several smaller ones")
    return bare


def _excess(raw: bytes) -> str:
    """What there is too much of, counted in texts, too; empty if nothing."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS:
        return f"{MAX_CONTAINERS} lists and objects"
    if raw.count(b":") > MAX_NAMES:
        return f"{MAX_NAMES} fields of objects"
    return f"{MAX_ENTRIES} entries of lists and objects" if raw.count(b",") > MAX_ENTRIES else ""


def _check_finite(raw: bytes, bare: bytes) -> None:
    """Fields without a type of their own (schemas, metadata) take what JSON has no words for, unless it is refused.

    ``bare``: ``raw``, with or without its texts.
    """
    alike = bare.translate(ALIKE)
    if not any(sign in alike for sign in MAYBE_INFINITE):
        return
    for place in _infinite(json.loads(raw)):
        where = ".".join(place)[:SHOWN]
        raise ApiError(f"{where}: NaN and infinite numbers are not allowed", param=where)


def _infinite(value: Any, *place: str) -> Iterator[tuple[str, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        if isinstance(inner, float):
            if not math.isfinite(inner):
                yield (*place, str(name))
        elif isinstance(inner, dict | list):
            yield from _infinite(inner, *place, str(name))


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


def _check_encoding(request: Request) -> None:
    """Nothing is unpacked: a few bytes could be gigabytes."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(f"the body must be plain JSON, without content encoding {encoding[:80]!r}", 415)


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
