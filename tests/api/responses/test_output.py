"""Tests of the output items of a response while they are generated."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, Reasoning, Text
from sglang_plug_api.responses.output import Output


def grown(*events: Any, whole: bool = True) -> tuple[list[tuple[Any, ...]], list[str]]:
    """Return names and item indices of the emitted events, and type and status of each item."""
    output = Output()
    emitted = [item for event in events for item in output.add(event)]
    emitted += output.finish(whole=whole)
    names = [(name.removeprefix("response."), fields["output_index"]) for name, fields in emitted]
    return names, [f"{item['type']} {item['status']}" for item in output.as_list()]


CALL = [CallStart(0, "f", "id"), CallArguments(0, "{}"), CallEnd(0)]


def test_an_output_of_nothing_is_an_empty_message() -> None:
    names, items = grown(Text(""))
    assert items == ["message completed"]
    assert [name for name, _ in names] == [
        "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip


def test_each_item_ends_before_the_next_begins() -> None:
    names, items = grown(Reasoning("t"), Text("a"), Text("b"), *CALL, Text("c"), whole=False)
    assert items == ["reasoning completed", "message completed", "function_call completed", "message incomplete"]
    indices = [index for _, index in names]
    assert indices == sorted(indices) and set(indices) == {0, 1, 2, 3}
    assert [name for name, index in names if index == 2] == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("events", "whole", "status"),
    [
        (CALL, False, "completed"),
        (CALL[:2], True, "completed"),
        (CALL[:2], False, "incomplete"),
        ([CALL[0], CallArguments(0, '{"a": '), CALL[2]], True, "incomplete"),
        ([CALL[0], CallArguments(0, "[1]"), CALL[2]], True, "incomplete"),
        ([CALL[0], Text("x")], True, "incomplete"),
    ],
)
def test_a_call_is_complete_if_its_arguments_are(events: Any, whole: bool, status: str) -> None:
    assert grown(*events, whole=whole)[1][0] == f"function_call {status}"


def test_ids() -> None:
    output = Output()
    for event in (*CALL, CallStart(1, "g"), CallEnd(1)):
        output.add(event)
    first, second = output.as_list()
    assert first["call_id"] == "id" and second["call_id"].startswith("call_")
    assert first["id"] != second["id"] and first["id"].startswith("fc_")
