"""Tests of ``$defs`` in the schemas of tools."""

from __future__ import annotations

import json
from typing import Any

PATH = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "Call a tool."}], "max_tokens": 60}


def defining(name: str, definition: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"v": {"$ref": "#/$defs/V"}},
        "required": ["v"],
        "additionalProperties": False,
        "$defs": {"V": definition},
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


DIFFERENT = [defining("one", {"enum": ["a"]}), defining("two", {"enum": ["b"]})]
ALIKE = [defining("one", {"enum": ["a"]}), defining("two", {"enum": ["a"]})]


def test_definitions_that_contradict_each_other_are_refused_where_any_tool_may_be_called(app: Any) -> None:
    error = app.refusal(PATH, {**ASK, "tools": DIFFERENT, "tool_choice": "required"})
    assert error["param"] == "tools.1.function.parameters"
    assert error["message"] == "$defs: 'V' has one schema in 'one' and another in 'two'; rename one of them"


def test_a_tool_that_is_named_keeps_to_its_own_definitions(app: Any) -> None:
    for name, value in (("one", "a"), ("two", "b")):
        choice = app.answer(PATH, {**ASK, "tools": DIFFERENT, "tool_choice": named(name)})["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, {"v": value})


def test_definitions_that_are_alike_may_be_shared(app: Any) -> None:
    (choice,) = app.answer(PATH, {**ASK, "tools": ALIKE, "tool_choice": "required"})["choices"]
    (call, *_) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"v": "a"}
