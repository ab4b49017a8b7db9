"""Tests of reading request bodies: content types, empty bodies, JSON, validation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel, model_validator

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.request_body import (
    MAX_CONTAINERS,
    MAX_ENTRIES,
    MAX_NAMES,
    MAX_TEXTS,
    read_body,
    takes,
)


class Body(BaseModel):
    count: int
    nested: Any = None


class Named(BaseModel):
    rid: str | list[str] | None = None
    request_id: str | None = None


def request_of(raw: bytes, leaves: bool = False, **headers: str) -> Request:
    messages: Iterator[dict[str, Any]] = iter(
        [{"type": "http.request", "body": raw[:5], "more_body": True}]
        + ([{"type": "http.disconnect"}] if leaves else [{"type": "http.request", "body": raw[5:], "more_body": False}])
    )

    async def receive() -> dict[str, Any]:
        return next(messages)

    raw_headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": raw_headers}, receive)


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "text/json", "application/vnd.x+json", ""]
)
async def test_json_by_any_name(kind: str) -> None:
    assert (await read_body(request_of(b'{"count": 3}', content_type=kind), Body)).count == 3
    assert (await read_body(request_of(b'{"count": 3}'), Body)).count == 3


async def test_a_byte_order_mark_is_passed_over() -> None:
    assert (await read_body(request_of(b'\xef\xbb\xbf{"count": 3}'), Body)).count == 3
    with pytest.raises(ApiError, match="body is empty"):
        await read_body(request_of(b"\xef\xbb\xbf"), Body)


async def test_what_is_compressed_is_refused_by_the_name_of_its_encoding() -> None:
    assert (await read_body(request_of(b'{"count": 3}', content_encoding="identity"), Body)).count == 3
    for encoding in ("gzip", "br", "zstd, gzip"):
        with pytest.raises(ApiError, match=encoding) as caught:
            await read_body(request_of(b"\x1f\x8b\x08", content_encoding=encoding), Body)
        assert caught.value.status == 415


FORM = "application/x-www-form-urlencoded"


async def test_what_curl_sends_is_read_but_not_from_a_browser() -> None:
    assert (await read_body(request_of(b'{"count": 3}', content_type=FORM), Body)).count == 3
    for header in ("origin", "sec_fetch_site"):
        with pytest.raises(ApiError) as caught:
            await read_body(request_of(b'{"count": 3}', content_type=FORM, **{header: "x"}), Body)
        assert caught.value.status == 415


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/xml", "json"])
async def test_other_types_are_refused(kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request_of(b'{"count": 3}', content_type=kind), Body)
    assert (caught.value.status, kind.partition(";")[0] in caught.value.message) == (415, True)


@pytest.mark.parametrize("raw", [b"", b"  \n", b"{", b"\xff", b"[1]", b'{"count": NaN}', b'{"nested":' * 5000])
async def test_what_is_no_such_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request_of(raw), Body)
    assert caught.value.status == 400
    assert len(caught.value.message) < 500


async def test_a_wrong_field_is_named() -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request_of(b'{"count": "many"}'), Body)
    assert caught.value.param == "count"


async def test_a_client_that_leaves_while_sending() -> None:
    with pytest.raises(ApiError) as caught:
        await read_body(request_of(b'{"count": 3}', leaves=True), Body)
    assert caught.value.status == 499


def test_takes_registers_the_model_for_the_document() -> None:
    router = APIRouter()

    @takes(router, "/count", Body, summary="counts", methods=["PUT"])
    async def count(request: Request) -> Response:
        return Response()

    app = FastAPI()
    app.include_router(router)
    call = app.openapi()["paths"]["/count"]
    assert call.keys() == {"put"}
    schema = call["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"$ref": "#/components/schemas/Body"}
    assert count.__dict__["body_model"] is Body


async def test_a_header_names_what_has_no_name_and_never_twice_the_same() -> None:
    rids = [(await read_body(request_of(b"{}", x_request_id="mine"), Named)).rid for _ in range(2)]
    assert [re.fullmatch("mine-[0-9a-f]{8}", str(rid)) is not None for rid in rids] == [True, True]
    assert rids[0] != rids[1]
    assert (await read_body(request_of(b"{}"), Named)).rid is None
    assert await read_body(request_of(b'{"count": 3}', x_request_id="mine"), Body) == Body(count=3)


@pytest.mark.parametrize(
    "body", [Named(rid="inside"), Named(request_id="inside"), Named(rid=["a", "b"])], ids=["rid", "request_id", "list"]
)
async def test_a_name_in_the_body_wins(body: Named) -> None:
    assert await read_body(request_of(body.model_dump_json().encode(), x_request_id="mine"), Named) == body


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "1e400", "-1.5E+0309", "9" * 400 + ".5", "1" * 300 + "e10"])
async def test_numbers_that_json_has_no_words_for_are_refused_in_free_fields_too(word: str) -> None:
    raw = f'{{"count": 1, "nested": {{"a": [0, {{"b": {word}}}]}}}}'.encode()
    with pytest.raises(ApiError, match="NaN and infinite") as caught:
        await read_body(request_of(raw), Body)
    assert caught.value.param == "nested.a.1.b"


@pytest.mark.parametrize("nested", ['"NaN"', "9" * 400, "1e300", '{"Infinity": "1e999"}', "-0.0e999"])
async def test_what_only_looks_infinite_is_read(nested: str) -> None:
    assert (await read_body(request_of(f'{{"count": 1, "nested": {nested}}}'.encode()), Body)).count == 1


MANY = {
    "lists and objects": lambda count: [[]] * (count - 2),
    "fields of objects": lambda count: {str(number): 0 for number in range(count - 2)},
    "entries of lists and objects": lambda count: [0] * count,
    "texts and names": lambda count: ["a"] * (count - 2),
}
LIMITS = {"texts and names": MAX_TEXTS, "lists and objects": MAX_CONTAINERS, "fields of objects": MAX_NAMES}


@pytest.mark.parametrize("kind", MANY)
async def test_what_is_slow_to_read_is_bounded(kind: str) -> None:
    """A body with the maximum number of entries is read; one more is refused before the model validates the body."""
    limit = LIMITS.get(kind, MAX_ENTRIES)
    body = await read_body(request_of(json.dumps({"count": 1, "nested": MANY[kind](limit)}).encode()), Body)
    assert len(body.nested) >= limit - 2
    with pytest.raises(ApiError, match=f"more than {limit} {kind}"):
        await read_body(request_of(json.dumps({"count": 1, "nested": MANY[kind](limit + 1)}).encode()), Untouched)


class Untouched(Body):
    @model_validator(mode="before")
    @classmethod
    def _fail(cls, values: Any) -> Any:
        raise AssertionError("validated")


async def test_texts_may_be_full_of_signs() -> None:
    text = r"""\"[{:,\\\"""" + "[{:,'\\\"" * (MAX_ENTRIES // 2)
    body = await read_body(request_of(json.dumps({"count": 1, "nested": [text, text]}).encode()), Body)
    assert body.nested == [text, text]


async def test_an_unterminated_string_is_scanned_once() -> None:
    """The end of a string is searched for only once: a search that restarts at each quote would take quadratic time."""
    with pytest.raises(ApiError, match="not valid JSON|Invalid JSON"):
        await read_body(request_of(b'{"nested": "' + b"[" * MAX_CONTAINERS + rb"\"" * (1 << 22)), Body)
