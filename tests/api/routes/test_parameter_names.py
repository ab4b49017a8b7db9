"""Errors about sampling parameters name the fields that the client sent."""

from __future__ import annotations

from typing import Any

import pytest

CHAT, COMPLETIONS, GENERATE, RESPONSES = "/v1/chat/completions", "/v1/completions", "/generate", "/v1/responses"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "a"}]},
    COMPLETIONS: {"prompt": "a"},
    GENERATE: {"text": "a"},
    RESPONSES: {"input": "a"},
}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"max_completion_tokens": 5000}, "max_completion_tokens"),
        (CHAT, {"max_tokens": 5000}, "max_tokens"),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 5000}, "max_completion_tokens"),
        (COMPLETIONS, {"max_tokens": 5000}, "max_tokens"),
        (GENERATE, {"sampling_params": {"max_new_tokens": 5000}}, "max_new_tokens"),
        (RESPONSES, {"max_output_tokens": 5000}, "max_output_tokens"),
    ],
)
def test_too_many_tokens(app: Any, path: str, fields: dict[str, Any], param: str) -> None:
    error = app.refusal(path, {**BODIES[path], **fields})
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "fields", "names"),
    [
        (CHAT, {"min_tokens": 9, "max_completion_tokens": 3}, ("min_tokens", "max_completion_tokens")),
        (COMPLETIONS, {"min_tokens": 9, "max_tokens": 3}, ("min_tokens", "max_tokens")),
        (
            GENERATE,
            {"sampling_params": {"min_new_tokens": 9, "max_new_tokens": 3}},
            ("min_new_tokens", "max_new_tokens"),
        ),
    ],
)
def test_a_minimum_above_the_maximum(app: Any, path: str, fields: dict[str, Any], names: tuple[str, str]) -> None:
    error = app.refusal(path, {**BODIES[path], **fields})
    assert error["param"] == names[0]
    assert error["message"] == f"{names[0]} must be at most {names[1]} (3), got 9"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_other_parameters_keep_their_names(app: Any, path: str) -> None:
    assert app.refusal(path, {**BODIES[path], "logit_bias": {"999999": 1.0}})["param"] == "logit_bias"
    assert app.refusal(path, {**BODIES[path], "stop": [""]})["param"] == "stop"
