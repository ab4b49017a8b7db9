"""Recordings of the same behaviour are equal, and a change of it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .__main__ import main
from .comparing import differences, nearly, nearly_equal
from .events import coarse
from .exchanges import uncovered
from .placeholders import Placeholders


def record(*events: Any, **more: Any) -> dict[str, Any]:
    return {"name": "x", "request": "", "events": [f"data: {json.dumps(event)}" for event in events], **more}


def chunk(text: str, index: int = 0, end: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": end}]}


def test_ids_times_and_folders_have_placeholders() -> None:
    placeholders = Placeholders([(Path("/somewhere/tree"), "<tree>"), (Path("/somewhere/tree/tmp"), "<scratch>")])
    texts = placeholders.exchange(
        "/v1/files",
        "/v1/files/file-0123456789abcdef0123456789abcdef",
        'date: today\nx: {"id":"call_0123456789abcdef01234567","created":1790000000}',
        '{"id":"file-0123456789abcdef0123456789abcdef","path":"/somewhere/tree/tmp/a","count":1790000000}',
    )
    assert texts == [
        "/v1/files/file-<id 1>",
        'date: <date>\nx: {"id":"call_<id 2>","created":"<time>"}',
        '{"id":"file-<id 1>","path":"<scratch>/a","count":1790000000}',
    ]


def test_streams_may_be_cut_at_other_tokens() -> None:
    fine = record(chunk("a"), chunk("x", 1), chunk("b"), chunk("c", end="stop"), chunk("y", 1))
    rough = record(chunk("ab"), chunk("c", end="stop"), chunk("xy", 1))
    other = record(chunk("ab"), chunk("d", end="stop"), chunk("xy", 1))
    assert coarse(fine) == coarse(rough) != coarse(other)
    assert list(differences({"x": fine}, {"x": rough}, prepare=dict, strict=False)) == []
    assert nearly_equal({"x": fine}, {"x": rough}, dict)["are cut into events at other tokens"] == ["x"]
    assert [difference.name for difference in differences({"x": fine}, {"x": rough}, prepare=dict, strict=True)] == [
        "x"
    ]
    assert [difference.name for difference in differences({"x": fine}, {"x": other}, prepare=dict, strict=False)] == [
        "x"
    ]


@pytest.mark.parametrize("incremental", [False, True])
def test_native_streams_are_joined_as_they_were_asked_for(incremental: bool) -> None:
    def event(text: str, end: str | None) -> dict[str, Any]:
        return {"text": text, "output_ids": [len(text)], "meta_info": {"finish_reason": end}}

    texts = ("ab", "cd") if incremental else ("ab", "abcd")
    streamed = record(*(event(text, end) for text, end in zip(texts, (None, "stop"), strict=True)))
    joined = coarse({**streamed, "request": '{"incremental": true}' if incremental else "{}"})
    (only,) = joined["events"]
    assert '"text": "abcd"' in only


def test_numbers_may_differ_in_their_last_digits() -> None:
    assert nearly('{"a": [1.00001, "x", 3]}', '{"a": [1.00002, "x", 3]}')
    for other in ('{"a": [1.1, "x", 3]}', '{"a": [1.00001, "y", 3]}', '{"a": [1.00001, "x", 4]}', "text"):
        assert not nearly('{"a": [1.00001, "x", 3]}', other)


def test_routes_that_nobody_asked_for_are_named() -> None:
    document: dict[str, Any] = {"paths": {"/a/{id}": {"get": {}, "delete": {}}, "/b": {"post": {}}}}
    assert uncovered({("GET", "/a/1"): [200], ("POST", "/b"): [404]}, document) == ["DELETE /a/{id}"]


def test_compare_shows_what_differs_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text('{"name": "x", "status": 404, "body": "no <tree>/a/b.py"}\n')
    second.write_text('{"name": "x", "status": 404, "body": "no <tree>/c.py"}\n')
    assert main(["compare", str(first), str(first)]) == 0
    assert main(["compare", str(first), str(second)]) == 1
    assert "-body: no <tree>/a/b.py" in capsys.readouterr().out
    assert main(["compare", "--ignore-locations", str(first), str(second)]) == 0
