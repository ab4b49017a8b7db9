"""Tests of the validation of input files of batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug_api.batches.lines import (
    MAX_ERRORS,
    FileCheck,
    Line,
    LineError,
    LineSplitter,
    check_file,
    parse_line,
    read_lines,
)

ENDPOINT = "/v1/completions"
Make = Callable[..., dict[str, Any]]


async def parts(text: str, size: int) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file in parts, as a store may."""
    content = text.encode()
    for start in range(0, len(content), size):
        yield content[start : start + size]


def check(text: str, **limits: int) -> FileCheck:
    """Return the faults of a file, and check that they do not depend on how its content is split."""
    options = {"max_lines": 1000, "max_bytes": 10_000, **limits}
    first, *others = (asyncio.run(check_file(parts(text, size), ENDPOINT, **options)) for size in (1, 7, 1000, 1 << 20))
    assert all(other == first for other in others)
    return first


def read(text: str) -> list[Line]:
    async def collect() -> list[Line]:
        return [line async for lines in read_lines(parts(text, 7), ENDPOINT, 1000) for line in lines]

    return asyncio.run(collect())


def parse(line: Any) -> LineError:
    raw = line if isinstance(line, bytes) else json.dumps(line).encode()
    with pytest.raises(LineError) as raised:
        parse_line(raw, 7, ENDPOINT)
    assert raised.value.line == 7
    return raised.value


def test_a_good_line(request_line: Make) -> None:
    line = parse_line(json.dumps(request_line(3)).encode(), 5, ENDPOINT)
    assert (line.number, line.custom_id, line.width) == (5, "line-3", 1)
    assert json.loads(line.body) == {"prompt": "prompt 3", "priority": -1}


@pytest.mark.parametrize("url", ["/completions", "/v1/completions"])
def test_both_spellings_of_the_url(request_line: Make, url: str) -> None:
    assert parse_line(json.dumps(request_line(1, url=url)).encode(), 1, ENDPOINT).custom_id == "line-1"


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/chat/completions", "completions", "", "/v1/v1/completions"])
def test_another_url_is_refused(request_line: Make, url: str) -> None:
    error = parse(request_line(1, url=url))
    assert (error.code, error.param) == ("invalid_url", "url")


@pytest.mark.parametrize("name", ["custom_id", "method", "url", "body"])
def test_a_missing_field_is_named(request_line: Make, name: str) -> None:
    line = request_line(1)
    del line[name]
    error = parse(line)
    assert (error.code, error.param) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[1]",
        b'"text"',
        b"null",
        b"\xff\xfe",
        b'{"custom_id":"\\ud800","method":"POST","url":"/completions","body":{}}',
        b'{"custom_id":"a","method":"POST","url":"/completions","body":{"temperature":NaN}}',
        b'{"custom_id":"a","method":"POST","url":"/completions","body":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    ],
)
def test_no_json(raw: bytes) -> None:
    assert parse(raw).code == "invalid_json_line"


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"method": "GET"}, "invalid_method", "method"),
        ({"body": {"stream": True}}, "invalid_request", "body.stream"),
        ({"body": [1]}, "invalid_request", "body"),
        ({"custom_id": 5}, "invalid_request", "custom_id"),
        ({"custom_id": ""}, "invalid_request", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_request", "custom_id"),
    ],
)
def test_wrong_values(request_line: Make, changes: dict[str, Any], code: str, param: str) -> None:
    error = parse(request_line(1, **changes))
    assert (error.code, error.param) == (code, param)


@pytest.mark.parametrize(("priority", "sent"), [(100, -1), (-5, -5), (0, -1), ("x", "x"), (True, True), (None, -1)])
def test_a_batch_cannot_raise_its_priority(request_line: Make, priority: Any, sent: Any) -> None:
    line = parse_line(json.dumps(request_line(1, body={"priority": priority})).encode(), 1, ENDPOINT)
    assert json.loads(line.body)["priority"] == sent


@pytest.mark.parametrize(
    ("body", "width"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1], [2]]}, 2),
        ({"input": ["a", "b", "c"]}, 3),
        ({"messages": [], "n": 4}, 4),
        ({"n": -1}, 1),
        ({"n": "many", "prompt": []}, 1),
    ],
)
def test_the_sequences_that_a_line_asks_for(request_line: Make, body: dict[str, Any], width: int) -> None:
    assert parse_line(json.dumps(request_line(1, body=body)).encode(), 1, ENDPOINT).width == width


def test_a_good_file_with_blank_lines(request_line: Make) -> None:
    lines = [json.dumps(request_line(number)) for number in range(3)]
    text = f"\n{lines[0]}\r\n\n  \n{lines[1]}\n{lines[2]}"
    assert check(text) == FileCheck(3, ())
    assert [line.number for line in read(text)] == [2, 5, 6]


def test_a_file_may_begin_with_a_byte_order_mark(request_line: Make) -> None:
    lines = [json.dumps(request_line(number)) for number in range(2)]
    text = "\ufeff" + "\r\n".join(lines)
    assert check(text) == FileCheck(2, ())
    assert [line.custom_id for line in read(text)] == ["line-0", "line-1"]


def test_every_fault_is_told_with_its_line(request_line: Make) -> None:
    lines: list[Any] = [request_line(1), "no", request_line(1), request_line(2, url="/x"), request_line(3)]
    checked = check("\n".join(map(json.dumps, lines)))
    assert [(error["line"], error["code"]) for error in checked.errors] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "invalid_url"),
    ]
    assert "line 1" in checked.errors[1]["message"]


def test_faults_are_not_counted_for_ever() -> None:
    assert len(check("x\n" * 900).errors) == MAX_ERRORS


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file(text: str) -> None:
    (error,) = check(text).errors
    assert (error["code"], error["line"]) == ("empty_file", None)


def test_too_many_lines(request_line: Make) -> None:
    text = "\n".join(json.dumps(request_line(number)) for number in range(5))
    assert check(text, max_lines=5).errors == ()
    (error,) = check(text, max_lines=4).errors
    assert (error["code"], error["line"]) == ("too_many_lines", 5)


def test_a_line_that_is_too_long(request_line: Make) -> None:
    text = json.dumps(request_line(1)) + "\n" + json.dumps(request_line(2, body={"prompt": "x" * 5000})) + "\n"
    (error,) = check(text, max_bytes=1000).errors
    assert (error["code"], error["line"]) == ("line_too_long", 2)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80) | st.text(max_size=80).map(str.encode))
def test_anything_is_a_line_or_a_fault(raw: bytes) -> None:
    try:
        parse_line(raw, 1, ENDPOINT)
    except LineError as error:
        json.dumps(error.as_dict())


def test_a_line_without_an_end_is_refused_before_all_of_it_is_read() -> None:
    splitter = LineSplitter(1000)
    assert list(splitter.feed(b"x" * 900)) == []
    with pytest.raises(LineError, match="longer than 1000 bytes"):
        list(splitter.feed(b"x" * 900))
