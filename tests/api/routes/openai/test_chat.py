"""Tests of ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Any

import pytest

PATH = "/v1/chat/completions"
FRANCE: dict[str, Any] = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
CALL = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
PARIS = "The capital of France is Paris."


def test_answer(app: Any) -> None:
    response = app.post(PATH, {**FRANCE, "rid": "a b"})
    completion = response.json()
    assert response.headers["x-request-id"] == "a%20b"
    assert (completion["id"], completion["object"], completion["model"]) == (
        "a b",
        "chat.completion",
        "sglang-plug-demo",
    )
    (choice,) = completion["choices"]
    assert choice["message"]["content"] == PARIS
    assert (choice["finish_reason"], choice["matched_stop"], choice["logprobs"]) == ("stop", 4, None)
    assert completion["usage"]["completion_tokens"] == 8


def test_stream(app: Any) -> None:
    response = app.post(PATH, {**FRANCE, "stream": True, "rid": "mine"})
    assert response.headers["x-request-id"] == "mine"
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.startswith('data: {"id":"mine","object":"chat.completion.chunk","created":')
    assert response.text.endswith("data: [DONE]\n\n")


def test_system_messages_and_tool_choice_none(app: Any) -> None:
    completion = app.answer(PATH, {**FRANCE, "tool_choice": "none"})
    assert completion["choices"][0]["message"]["content"] == PARIS
    with_system = {**FRANCE, "messages": [{"role": "system", "content": "Be brief."}, *FRANCE["messages"]]}
    assert app.answer(PATH, with_system)["usage"]["prompt_tokens"] > completion["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"response_format": {"type": "banana"}}, "response_format"),
        ({"messages": []}, "messages"),
        ({"messages": [*FRANCE["messages"], CALL], "continue_final_message": True}, "messages"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals(app: Any, fields: dict[str, Any], param: str, stream: bool) -> None:
    assert app.refusal(PATH, {**FRANCE, **fields, "stream": stream})["param"] == param
    assert app.is_whole()
