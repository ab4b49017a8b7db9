"""Errors of constraints that the engine refuses name the field of the request."""

from __future__ import annotations

import json
from typing import Any

import pytest

NO_SCHEMA = {"type": "object", "not": {}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": NO_SCHEMA}}
TOOL = {"name": "f", "parameters": NO_SCHEMA}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
RESPONSE = {"input": "Hi", "max_output_tokens": 16}
TEXT_FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": NO_SCHEMA}}


GOOD = {"type": "function", "function": {"name": "good", "parameters": {"type": "object"}}}
BAD = {"type": "function", "function": TOOL}
SECOND = {"tools": [GOOD, BAD], "tool_choice": "required"}
STRICT = {"tools": [GOOD, {"type": "function", "function": {**TOOL, "strict": True}}]}
FIRST_ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}
ALLOWED = {"tools": [GOOD, BAD], "tool_choice": {"type": "allowed_tools", "allowed_tools": FIRST_ALLOWED}}
FLAT = [{"type": "function", "name": "good", "parameters": {}}, {"type": "function", **TOOL}]
TAG = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": NO_SCHEMA}}
OLD_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema_": NO_SCHEMA}}
BATCH = {"text": ["a", "b"], "sampling_params": [{"json_schema": {}}, {"json_schema": NO_SCHEMA}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "response_format": FORMAT}, "response_format.json_schema.schema"),
        ("/v1/chat/completions", {**CHAT, "response_format": OLD_FORMAT}, "response_format.json_schema.schema_"),
        ("/v1/chat/completions", {**CHAT, "response_format": TAG}, "response_format"),
        ("/v1/chat/completions", {**CHAT, "regex": "(?=a)"}, "regex"),
        ("/v1/chat/completions", {**CHAT, **TOOLS}, "tools[0].function.parameters"),
        ("/v1/chat/completions", {**CHAT, **SECOND}, "tools[1].function.parameters"),
        ("/v1/chat/completions", {**CHAT, **STRICT}, "tools[1].function.parameters"),
        ("/v1/chat/completions", {**CHAT, **ALLOWED}, "tools[1].function.parameters"),
        ("/v1/completions", {"prompt": "Hi", "response_format": FORMAT}, "response_format.json_schema.schema"),
        ("/v1/completions", {"prompt": "Hi", "ebnf": "root ::= nowhere"}, "ebnf"),
        ("/v1/responses", {**RESPONSE, "text": TEXT_FORMAT}, "text.format.schema"),
        ("/v1/responses", {**RESPONSE, "text": {"format": TAG}}, "text.format"),
        ("/v1/responses", {**RESPONSE, "regex": "(?=a)"}, "regex"),
        ("/v1/responses", {**RESPONSE, "tools": FLAT, "tool_choice": "required"}, "tools[1].parameters"),
        ("/generate", {"text": "Hi", "sampling_params": {"json_schema": NO_SCHEMA}}, "sampling_params.json_schema"),
        ("/generate", {"text": "Hi", "sampling_params": {"regex": "(?=a)"}}, "sampling_params.regex"),
        ("/generate", {"text": "Hi", "sampling_params": {"structural_tag": TAG}}, "sampling_params.structural_tag"),
    ],
)
def test_what_cannot_be_enforced(app: Any, path: str, body: dict[str, Any], param: str, stream: bool) -> None:
    error = app.refusal(path, {**body, "stream": stream})
    assert (error["param"], error["code"]) == (param, None)
    assert error["message"].startswith(f"{param}: ")
    assert ("structural_tag" in error["message"]) == param.endswith("structural_tag")


def test_a_refused_constraint_of_several_is_named(app: Any) -> None:
    assert app.refusal("/generate", BATCH)["param"] == "sampling_params[1].json_schema"


def test_a_refused_constraint_of_several_is_named_in_a_stream(app: Any) -> None:
    """The status is 200 if the output of the first prompt arrives before the refusal of the second one."""
    response = app.post("/generate", {**BATCH, "stream": True})
    if response.status_code == 200:
        *_, event = [line for line in response.text.splitlines() if "error" in line]
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        error = response.json()["error"]
    assert error["param"] == "sampling_params[1].json_schema" and error["message"].startswith(error["param"])


def test_a_refused_structural_tag_names_the_part_of_it(app: Any) -> None:
    error = app.refusal("/generate", {"text": "Hi", "sampling_params": {"structural_tag": TAG}})
    assert "format/json_schema: the keyword 'not' at # cannot be enforced" in error["message"]


def test_characters_that_cannot_be_written(app: Any) -> None:
    error = app.refusal("/generate", {"text": "Hi", "sampling_params": {"json_schema": '{"const": "\0"}'}})
    assert error["param"] == "sampling_params.json_schema" and error["message"].startswith(error["param"])
