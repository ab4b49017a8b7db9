"""Tests of the validation of bodies of chat and completions."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sglang_plug_api.answers.errors import from_validation
from sglang_plug_api.protocol.base import salts_of_prompts
from sglang_plug_api.protocol.openai import ChatBody, CompletionBody
from sglang_plug_api.protocol.tokenize import TokenizeBody

HELLO = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatBody:
    return ChatBody.model_validate({"messages": HELLO, **fields})


def completion(**fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": "x", **fields})


def test_only_what_was_given_is_passed_on_in_native_names() -> None:
    assert chat().sampling() == {}
    fields = {"min_tokens": 2, "include_stop_str_in_output": True, "max_tokens": 5, "top_k": 3, "seed": 0}
    expected = {"min_new_tokens": 2, "no_stop_trim": True, "max_new_tokens": 5, "top_k": 3, "seed": 0}
    assert chat(**fields).sampling() == expected


@pytest.mark.parametrize(
    ("fields", "native"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, {"max_new_tokens": 7}),
        ({"max_completion_tokens": 0, "max_tokens": 5}, {"max_new_tokens": 0}),
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"no_stop_trim": False, "include_stop_str_in_output": True}, {"no_stop_trim": True}),
    ],
    ids=str,
)
def test_of_two_names_the_newer_wins(fields: Any, native: Any) -> None:
    assert chat(**fields).sampling() == native


def test_usage_options() -> None:
    plain = chat(stream=True)
    assert (plain.usage_in_stream, plain.usage_in_chunks) == (False, False)
    full = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    assert (full.usage_in_stream, full.usage_in_chunks) == (True, True)
    with pytest.raises(ValidationError, match="only allowed when stream is true"):
        chat(stream_options={"include_usage": True})


def test_messages_become_plain() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = chat(messages=[{"role": "user", "content": parts, "name": "me"}]).messages
    assert message.plain() == {"role": "user", "content": "a\nb", "name": "me"}
    (empty,) = chat(messages=[{"role": "assistant", "content": None}]).messages
    assert empty.plain() == {"role": "assistant", "content": ""}
    (custom,) = chat(messages=[{"role": "user", "content": "x", "mood": "good"}]).messages
    assert custom.plain()["mood"] == "good"


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("content", [{}, {"content": None}], ids=["missing", "null"])
def test_only_answers_can_be_without_content(role: str, content: Any) -> None:
    with pytest.raises(ValidationError, match="need content") as caught:
        chat(messages=[{"role": "user", "content": "x"}, {"role": role, **content}])
    assert from_validation(caught.value).param == "messages.1.content"


def test_refusals_of_earlier_answers_are_text() -> None:
    for message in ({"refusal": "No.", "content": None}, {"content": [{"type": "refusal", "refusal": "No."}]}):
        (refusal,) = chat(messages=[{"role": "assistant", **message}]).messages
        assert refusal.plain() == {"role": "assistant", "content": "No."}


def test_earlier_calls() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}, "index": 0}
    (message,) = chat(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}]).messages
    assert message.plain()["tool_calls"] == [{**call, "type": "function"}]
    bare = {"function": {"name": "f"}}
    (message,) = chat(messages=[{"role": "assistant", "tool_calls": [bare]}]).messages
    assert message.plain()["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"tool_calls": [{}]}, "messages.0.tool_calls.0.function"),
        ({"tool_calls": [{"function": {"arguments": "{}"}}]}, "messages.0.tool_calls.0.function.name"),
        ({"tool_calls": [{"type": "custom", "function": {"name": "f"}}]}, "messages.0.tool_calls.0.type"),
        ({"function_call": {"name": "f", "arguments": "{}"}}, "messages.0.function_call"),
        ({"audio": {"id": "x"}}, "messages.0.audio"),
    ],
    ids=str,
)
def test_what_earlier_answers_cannot_have_is_named(message: Any, param: str) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(messages=[{"role": "assistant", "content": "x", **message}])
    assert from_validation(caught.value).param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        {"messages": [{"role": "king", "content": "x"}]},
        {"messages": [{"content": "x"}]},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 21},
        {"temperature": -1},
        {"n": 0},
        {"max_tokens": -1},
        {"model": "m" * 257},
    ],
    ids=str,
)
def test_what_chat_refuses(fields: Any) -> None:
    with pytest.raises(ValidationError):
        chat(**fields)


@pytest.mark.parametrize("effort", ["none", "ultra", "max", 0.0, 0.5, 0.99])
def test_efforts_are_levels_or_numbers(effort: Any) -> None:
    assert chat(reasoning_effort=effort).reasoning_effort == effort
    assert TokenizeBody.model_validate({"messages": HELLO, "reasoning_effort": effort}).reasoning_effort == effort


@pytest.mark.parametrize("effort", ["much", 1.0, -0.1, True, False, "0.5"])
def test_other_efforts_are_refused(effort: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(reasoning_effort=effort)
    assert from_validation(caught.value).param == "reasoning_effort"


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "input_audio"}, "type 'input_audio'; parts are of type 'text', or 'image_url' for vision-language"),
        ({"type": "text", "text": 3}, "message 0 has a text part whose text is not a string"),
    ],
    ids=str,
)
def test_a_refused_part_of_a_message_is_described(part: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        chat(messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]]), (["a"], ["a"])],
)
def test_prompts(prompt: Any, prompts: list[Any]) -> None:
    assert completion(prompt=prompt).prompts() == prompts


@pytest.mark.parametrize(
    "prompt", ["", [], [""], ["a", ""], [[]], [[1], []], None, 5, [1, "a"], [True], [-1], [[1], 2]]
)
def test_prompts_that_are_none(prompt: Any) -> None:
    with pytest.raises(ValidationError):
        completion(prompt=prompt)


def test_old_completion_fields() -> None:
    assert completion(best_of=1).best_of == 1
    assert completion(best_of=3, n=3).n == 3
    for fields in ({"best_of": 2}, {"best_of": 5, "n": 3}, {"suffix": "x"}, {"logprobs": 21}):
        with pytest.raises(ValidationError):
            completion(**fields)


def salt(**fields: Any) -> str:
    return salts_of_prompts(chat(**fields), 1)[0]


def test_salts() -> None:
    assert (salt(), salt(extra_key="k"), salt(cache_salt="s")) == ("", "k", "s")


def test_both_fields_of_the_salt_separate_prefixes() -> None:
    salts = [salt(cache_salt=text, extra_key=key) for text in ("s", "t", None) for key in ("k", "l", None)]
    assert len(set(salts)) == len(salts)
    assert salt(cache_salt="ab", extra_key="c") != salt(cache_salt="a", extra_key="bc")
