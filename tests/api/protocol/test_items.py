"""Tests of the conversion of items of ``/v1/responses`` to messages."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from sglang_plug_api.protocol.items import Item, check_outputs, messages_of

ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
ASKED = {"role": "user", "content": "?"}


def messages(*items: Any) -> list[dict[str, Any]]:
    return messages_of(ITEMS.validate_python(items))


def output_message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(id: str) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": id, "name": "f", "arguments": "{}", "status": "completed"}


def returned(id: str, output: Any = "x") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": output}


def thought(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def turn(content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def result(id: str, content: str = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([output_message("a"), output_message("b")], [turn("a"), turn("b")]),
        ([output_message("a"), called("1"), called("2")], [turn("a", tool_calls=[call("1"), call("2")])]),
        ([called("1"), output_message("a")], [turn("a", tool_calls=[call("1")])]),
        ([thought("t"), output_message("a"), called("1")], [turn("a", reasoning_content="t", tool_calls=[call("1")])]),
        ([output_message("a"), thought("t"), output_message("b")], [turn("a"), turn("b", reasoning_content="t")]),
        ([thought("t"), called("1"), thought("u")], [turn(reasoning_content="tu", tool_calls=[call("1")])]),
        ([{"type": "reasoning", "summary": [], "content": None}, output_message("a")], [turn("a")]),
        (
            [
                called("1"),
                returned("1"),
                called("2"),
                returned("2", [{"type": "input_text", "text": "y"}]),
                output_message("a"),
            ],
            [turn(tool_calls=[call("1")]), result("1"), turn(tool_calls=[call("2")]), result("2", "y"), turn("a")],
        ),
        ([output_message("a"), {"role": "developer", "content": "b"}], [turn("a"), {"role": "system", "content": "b"}]),
    ],
)
def test_what_an_assistant_does_without_an_answer_in_between_is_one_message(items: Any, expected: Any) -> None:
    assert messages(ASKED, *items) == [ASKED, *expected]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "x"},
        {"type": "web_search_call", "id": "x"},
        {"type": "function_call", "call_id": "1", "name": "f"},
        {"type": "function_call_output", "call_id": "1"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image"}]},
        {"type": "reasoning", "content": "x"},
        {"type": 3},
        "x",
    ],
)
def test_what_is_refused(item: Any) -> None:
    with pytest.raises(ValidationError):
        messages(item)


def test_an_output_needs_an_earlier_call() -> None:
    check_outputs(messages(called("1"), returned("1"), ASKED, called("2"), called("3"), returned("3"), returned("2")))
    for items in ([returned("1")], [returned("1"), called("1")], [called("1"), returned("2")]):
        with pytest.raises(ValueError, match="No tool call found for function call output with call_id"):
            check_outputs(messages(*items))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio"}, "type 'input_audio'; parts are of type 'input_text' or 'output_text'"),
        ({"type": "input_text"}, "a content part of type 'input_text' has no text"),
    ],
    ids=str,
)
def test_a_refused_part_of_a_message_is_described(part: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        messages({"role": "user", "content": [part]})
