"""Tests of the variables that requests set for the chat template."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.openai.template_variables import template_variables


def variables(
    template: str | None, effort: str | float | None, *, reasons: bool = False, strict: bool = True, **fields: Any
) -> dict[str, Any]:
    engine: Any = SimpleNamespace(
        tokenizer=SimpleNamespace(chat_template=lambda *, tools: template),
        parsers=SimpleNamespace(reasoning=object() if reasons else None),
    )
    return template_variables(engine, fields, effort, tools=False, strict=strict)


@pytest.mark.parametrize(
    ("template", "effort", "expected"),
    [
        ("{{ reasoning_effort }}", "low", {"reasoning_effort": "low"}),
        ("{{ reasoning_effort }}", "none", {"reasoning_effort": "none"}),
        ("{{ reasoning_effort }}", 0.5, {"reasoning_effort": 0.5}),
        ("{% if enable_thinking %}", 0.0, {}),
        ("{% if enable_thinking %}", "none", {"enable_thinking": False}),
        ("{% if thinking %}", "none", {"thinking": False}),
        ("{% if enable_thinking %}", "high", {}),
        ("plain", "none", {}),
        ("plain", "low", {}),
        ("my_reasoning_effort_2", "low", {}),
        ("plain", None, {}),
        (None, "none", {}),
    ],
)
def test_an_effort_is_what_the_template_knows(template: str | None, effort: str | float | None, expected: Any) -> None:
    assert variables(template, effort) == expected


def test_reasoning_that_cannot_be_left_out() -> None:
    assert variables("plain", "high", reasons=True) == {}
    with pytest.raises(ApiError, match="no way to leave reasoning out") as caught:
        variables("plain", "none", reasons=True)
    assert caught.value.param == "reasoning_effort"
    assert variables("plain", "none", reasons=True, strict=False) == {}
    assert variables("{% if thinking %}", "none", reasons=True, strict=False) == {"thinking": False}


def test_the_caller_s_own_variables() -> None:
    assert variables("enable_thinking", "none", enable_thinking=True, mood="good") == {
        "enable_thinking": True,
        "mood": "good",
    }
    with pytest.raises(ApiError, match="cannot set 'tools'") as caught:
        variables("", None, tools=[])
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "add_generation_prompt", "bos_token", "pad_token", "raise_exception", "strftime_now"]
    + ["range", "dict", "namespace", "cycler", "joiner", "lipsum"],
)
def test_a_caller_cannot_replace_what_templates_rely_on(name: str) -> None:
    with pytest.raises(ApiError, match=f"cannot set '{name}'") as caught:
        variables("", None, **{name: "value"})
    assert caught.value.param == "chat_template_kwargs"


def test_documents_belong_to_the_caller() -> None:
    assert variables("", None, documents=[{"text": "x"}]) == {"documents": [{"text": "x"}]}
