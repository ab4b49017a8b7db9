from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from sglang_plug_anthropic import register_routes
from sglang_plug_anthropic.bodies import AnthropicBody

HELLO = {"role": "user", "content": "Hello"}


def body(**fields: Any) -> AnthropicBody:
    return AnthropicBody.model_validate({"model": "m", "max_tokens": 4, "messages": [HELLO], **fields})


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def image(**source: str) -> dict[str, Any]:
    return {"type": "image", "source": source}


PICTURE = image(type="base64", media_type="image/png", data="YQ==")


def test_images_stay_between_the_texts() -> None:
    link = image(type="url", url="https://example.com/a.png")
    found = body(messages=[{"role": "user", "content": [*blocks("One"), PICTURE, *blocks("Two", "x")]}, HELLO])
    parts = [{"type": "text", "text": "One"}, {"type": "image"}]
    parts += [{"type": "text", "text": text} for text in ("Two", "x", "Hello")]
    assert found.conversation() == [{"role": "user", "content": parts}]
    assert [(one.where, one.source) for one in found.images()] == [("messages.0.content.1", "YQ==")]
    found = body(messages=[HELLO, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": [link]}])
    assert [(one.where, one.source) for one in found.images()] == [("messages.2.content.0", link["source"]["url"])]
    assert body().images() == []


def test_it_declares_one_group_of_routes() -> None:
    (spec,) = register_routes()
    assert (spec.kind, spec.name, spec.auth) == ("route", "anthropic", "user")


def test_system_prompt_and_blocks_become_plain_messages() -> None:
    found = body(system=blocks("Be", "brief"), messages=[{"role": "user", "content": blocks("Hello", "there")}])
    expected = [{"role": "system", "content": "Be\nbrief"}, {"role": "user", "content": "Hello\nthere"}]
    assert found.conversation() == expected


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system_prompt_is_no_message(system: Any) -> None:
    assert body(system=system).conversation() == [HELLO]


def test_turns_of_one_role_are_one() -> None:
    answer = {"role": "assistant", "content": "Yes?"}
    found = body(messages=[HELLO, HELLO, answer, HELLO]).conversation()
    assert found == [{"role": "user", "content": "Hello\nHello"}, answer, HELLO]


@pytest.mark.parametrize(
    ("role", "content", "continues"), [("user", "Hi", False), ("assistant", "Hi", True), ("assistant", "", False)]
)
def test_a_final_assistant_message_is_continued(role: str, content: str, continues: bool) -> None:
    assert body(messages=[HELLO, {"role": role, "content": content}]).continues is continues


def test_sampling_has_native_names_and_nothing_that_was_left_out() -> None:
    assert body().sampling() == {"max_new_tokens": 4}
    given = body(temperature=0, top_p=0.5, top_k=3, stop_sequences=["x"]).sampling()
    assert given == {"max_new_tokens": 4, "temperature": 0, "top_p": 0.5, "top_k": 3, "stop": ["x"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"thinking": {"type": "disabled"}},
        {"tool_choice": {"type": "auto"}},
        {"metadata": {"user_id": "u"}},
        {"service_tier": "auto"},
        {"messages": [{"role": "user", "content": [{**blocks("Hi")[0], "cache_control": {"type": "ephemeral"}}]}]},
    ],
    ids=repr,
)
def test_what_changes_nothing_is_accepted(fields: dict[str, Any]) -> None:
    assert body(**fields).max_tokens == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": True}, "not true or false"),
        ({"max_tokens": -1}, "greater than or equal to 0"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "'user' or 'assistant'"),
        ({"messages": [{"role": "user", "content": ""}]}, "message 0 is empty"),
        ({"messages": [{"role": "assistant", "content": ""}, HELLO]}, "message 0 is empty"),
        ({"messages": [HELLO, {"role": "assistant", "content": "So "}]}, "must not end with whitespace"),
        ({"messages": [{"role": "user", "content": blocks("")}]}, "must be non-empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "an image has a source"),
        ({"messages": [{"role": "user", "content": [image(type="file", file_id="x")]}]}, "'base64' or 'url'"),
        ({"messages": [{"role": "user", "content": [image(type="base64")]}]}, "has a field 'data'"),
        ({"messages": [{"role": "user", "content": [image(type="url", data="x")]}]}, "has a field 'url'"),
        ({"messages": [HELLO, {"role": "assistant", "content": [PICTURE]}, HELLO]}, "message 1 is the assistant's"),
        ({"system": [PICTURE]}, "this is the system prompt"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "type 'document' are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "type 'tool_result' are not"),
        ({"tools": [{"name": "t"}]}, "'tools' is not supported"),
        ({"tool_choice": {"type": "any"}}, "'tool_choice' of type 'any'"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "'thinking' of type 'enabled'"),
        ({"output_config": {"effort": "low"}}, "'output_config' is not supported"),
        ({"mcp_servers": [{"url": "x"}]}, "'mcp_servers' is not supported"),
    ],
    ids=repr,
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        body(**fields)
