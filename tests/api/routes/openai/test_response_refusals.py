"""Tests of requests that ``/v1/responses`` refuses, and of the error messages."""

from __future__ import annotations

from typing import Any

import pytest

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,YQ=="}
REFUSALS: list[tuple[dict[str, Any], str, str | None]] = [
    ({"input": ""}, "input cannot be empty", "input"),
    ({"input": []}, "input cannot be empty", "input"),
    ({"text": {"format": {"name": "n", "schema": {}}}}, "needs a type", "text.format.type"),
    ({"input": None}, "valid array", "input"),
    ({"input": 3}, "valid array", "input"),
    ({"input": [3]}, "an object", "input.0"),
    ({"input": [{"role": "user"}]}, "content", "input.0.content"),
    ({"input": [{"role": "nobody", "content": "x"}]}, "role", "input.0.role"),
    ({"input": [{"type": "function_call", "call_id": "x"}]}, "name", "input.0.name"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'", "input.0"),
    ({"input": [{"type": ["x"], "id": "x"}]}, "['x']", "input.0"),
    (
        {"input": [{"role": "user", "content": [IMAGE]}]},
        "'input_image'; this model takes text parts only",
        "input.0.content",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "an image_url or a file_id",
        "input.0.content",
    ),
    (
        {"input": [{"role": "user", "content": [{**IMAGE, "file_id": "x"}]}]},
        "an image_url or a file_id",
        "input.0.content",
    ),
    ({"input": [{"role": "system", "content": [IMAGE]}]}, "of role 'system' cannot have", "input.0"),
    ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 3}]}]}, "text", "input.0.content"),
    ({"max_output_tokens": 0}, "greater than", "max_output_tokens"),
    ({"max_output_tokens": 10**9}, "maximum context length", "max_output_tokens"),
    ({"temperature": -1}, "temperature", "temperature"),
    ({"top_p": 2}, "top_p", "top_p"),
    ({"stop": [""]}, "stop", "stop"),
    ({"background": True, "store": False}, "store is false", "background"),
    ({"tool_choice": "required"}, "Tools cannot be empty", "tool_choice"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "schema_ is required", "text.format"),
    ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "Only one of", "text.format"),
    ({"text": {"format": {"type": "banana"}}}, "'banana' is unknown", "text.format"),
    ({"reasoning": {"effort": "much"}}, "reasoning.effort", "reasoning.effort"),
    ({"reasoning": {"summary": "detailed"}}, "Input should be 'auto'", "reasoning.summary"),
    ({"top_logprobs": 21}, "less than or equal to 20", "top_logprobs"),
    ({"include": ["everything"]}, "'everything' is not supported", "include"),
    ({"truncation": "middle"}, "truncation", "truncation"),
    ({"metadata": {str(number): "x" for number in range(17)}}, "at most 16", "metadata"),
    ({"metadata": {"a": "x" * 513}}, "512", "metadata"),
    ({"metadata": {"a": 1}}, "metadata", "metadata.a"),
    ({"previous_response_id": "resp_unknown"}, "not found", "previous_response_id"),
    ({"messages": [{"role": "user", "content": "x"}]}, "use input", "messages"),
    ({"max_tokens": 3}, "use max_output_tokens", "max_tokens"),
    ({"n": 2}, "one response", "n"),
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("change", "text", "param"), REFUSALS, ids=lambda value: str(value)[:40])
def test_refusals(app: Any, change: dict[str, Any], text: str, param: str | None, streams: bool) -> None:
    error = app.refusal("/v1/responses", {"input": "Hi", "stream": streams, **change})
    assert text in error["message"]
    assert error["param"] == param
