"""Constraints that the engine refuses: the error names the field of the request that says them."""

from __future__ import annotations

from typing import Any

import pytest

NO_SCHEMA = {"type": "object", "not": {}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": NO_SCHEMA}}
TOOL = {"name": "f", "parameters": NO_SCHEMA}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
TOOLS = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
RESPONSE = {"input": "Hi", "max_output_tokens": 16}
TEXT_FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": NO_SCHEMA}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {**CHAT, "response_format": FORMAT}, "response_format"),
        ("/v1/chat/completions", {**CHAT, "regex": "(?=a)"}, "regex"),
        ("/v1/chat/completions", {**CHAT, **TOOLS}, "tools"),
        ("/v1/completions", {"prompt": "Hi", "response_format": FORMAT}, "response_format"),
        ("/v1/completions", {"prompt": "Hi", "ebnf": "root ::= nowhere"}, "ebnf"),
        ("/v1/responses", {**RESPONSE, "text": TEXT_FORMAT}, "text.format"),
        ("/v1/responses", {**RESPONSE, "regex": "(?=a)"}, "regex"),
        ("/v1/responses", {**RESPONSE, "tools": [{"type": "function", **TOOL}], "tool_choice": "required"}, "tools"),
        ("/generate", {"text": "Hi", "sampling_params": {"json_schema": NO_SCHEMA}}, "json_schema"),
    ],
)
def test_what_cannot_be_enforced(app: Any, path: str, body: dict[str, Any], param: str, stream: bool) -> None:
    error = app.refusal(path, {**body, "stream": stream})
    assert (error["param"], error["code"]) == (param, None)
