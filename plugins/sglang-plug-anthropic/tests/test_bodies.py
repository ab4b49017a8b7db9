from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from sglang_plug_anthropic import register_routes
from sglang_plug_anthropic.bodies import AnthropicBody

from sglang_plug import Constraint
from sglang_plug_api.plugin import NamedTool

HELLO = {"role": "user", "content": "Hello"}


def body(**fields: Any) -> AnthropicBody:
    return AnthropicBody.model_validate({"model": "m", "max_tokens": 4, "messages": [HELLO], **fields})


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def image(**source: str) -> dict[str, Any]:
    return {"type": "image", "source": source}


def result(id: str, content: Any = "sunny") -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content}


USED = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Lima"}}
CALLED = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
PICTURE = image(type="base64", media_type="image/png", data="YQ==")


def test_images_stay_between_the_texts() -> None:
    link = image(type="url", url="https://example.com/a.png")
    outcome = body(messages=[{"role": "user", "content": [*blocks("One"), PICTURE, *blocks("Two", "x")]}, HELLO])
    parts = [{"type": "text", "text": "One"}, {"type": "image"}]
    parts += [{"type": "text", "text": text} for text in ("Two", "x", "Hello")]
    assert outcome.chat().messages == [{"role": "user", "content": parts}]
    assert [(item.where, item.source) for item in outcome.chat().images] == [("messages.0.content.1", "YQ==")]
    outcome = body(messages=[HELLO, {"role": "assistant", "content": "Yes?"}, {"role": "user", "content": [link]}])
    assert [(item.where, item.source) for item in outcome.chat().images] == [
        ("messages.2.content.0", link["source"]["url"])
    ]
    assert body().chat().images == []


def test_calls_and_their_results_become_messages_of_their_own() -> None:
    user = {"role": "user", "content": [*blocks("And now?"), result("toolu_1", [*blocks("sun", "wind"), PICTURE])]}
    thoughts = [{"type": "thinking", "thinking": "Hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}]
    assistant = {"role": "assistant", "content": [*thoughts, *blocks("Let me see."), USED]}
    outcome = body(messages=[HELLO, assistant, user]).chat()
    assert outcome.messages[1:] == [
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm", "tool_calls": [CALLED]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "sun\nwind"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And now?"}]},
    ]
    assert [item.where for item in outcome.images] == ["messages.2.content.1.content.2"]


def test_a_turn_with_nothing_but_a_result_is_no_message_of_the_user() -> None:
    outcome = body(
        messages=[HELLO, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [result("toolu_1")]}]
    )
    assert [message["role"] for message in outcome.chat().messages] == ["user", "assistant", "tool"]
    assert not outcome.continues


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
    ],
)
def test_choices_of_tools(choice: Any, expected: Any, parallel: bool | None) -> None:
    outcome = body(
        tools=[{"name": "weather", "description": "d", "input_schema": {"type": "object"}}], tool_choice=choice
    )
    assert (outcome.chat().tool_choice, outcome.chat().parallel_tool_calls) == (expected, parallel)
    (tool,) = outcome.chat().tools or ()
    function = {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    assert tool.model_dump(exclude_unset=True) == {"type": "function", "function": function}


def test_a_named_tool_is_the_one_that_must_be_called() -> None:
    outcome = (
        body(tools=[{"name": "t", "input_schema": {}}], tool_choice={"type": "tool", "name": "t"}).chat().tool_choice
    )
    assert isinstance(outcome, NamedTool) and outcome.function.name == "t"


@pytest.mark.parametrize(
    ("thinking", "shows_thinking", "without"),
    [
        (None, False, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, False),
        ({"type": "adaptive"}, True, False),
        ({"type": "adaptive", "display": "omitted"}, False, False),
        ({"type": "disabled"}, False, True),
    ],
)
def test_thinking(thinking: Any, shows_thinking: bool, without: bool) -> None:
    outcome = body(thinking=thinking)
    assert (outcome.shows_thinking, outcome.chat().prefer_no_reasoning) == (shows_thinking, without)


def test_what_the_answer_is_to_look_like() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    expected = Constraint("json_schema", '{"type": "object"}')
    assert body(output_config={"format": form}).chat().constraint == expected
    assert body(output_format=form).chat().constraint == expected
    assert body(output_config={"effort": "low"}).chat().reasoning_effort == "low"


def test_it_declares_one_group_of_routes() -> None:
    (spec,) = register_routes()
    assert (spec.kind, spec.name, spec.auth) == ("route", "anthropic", "user")


def test_system_prompt_and_blocks_become_plain_messages() -> None:
    outcome = body(system=blocks("Be", "brief"), messages=[{"role": "user", "content": blocks("Hello", "there")}])
    expected = [{"role": "system", "content": "Be\nbrief"}, {"role": "user", "content": "Hello\nthere"}]
    assert outcome.chat().messages == expected


def test_messages_of_the_system_join_the_prompt_before_the_first_turn_and_keep_their_position_after_it() -> None:
    def system(text: str) -> dict[str, Any]:
        return {"role": "system", "content": text}

    outcome = body(system="One.", messages=[system("Two."), system("Three."), HELLO]).chat()
    assert outcome.messages == [system("One.\nTwo.\nThree."), HELLO]
    assert body(messages=[system("Two."), HELLO]).chat().messages == [system("Two."), HELLO]
    answer = {"role": "assistant", "content": "Yes."}
    assert body(messages=[HELLO, system("Late."), answer, HELLO]).chat().messages == [
        HELLO,
        system("Late."),
        answer,
        HELLO,
    ]


@pytest.mark.parametrize("system", [None, "", []])
def test_no_system_prompt_is_no_message(system: Any) -> None:
    assert body(system=system).chat().messages == [HELLO]


def test_turns_of_one_role_are_one() -> None:
    answer = {"role": "assistant", "content": "Yes?"}
    outcome = body(messages=[HELLO, HELLO, answer, HELLO]).chat().messages
    assert outcome == [{"role": "user", "content": "Hello\nHello"}, answer, HELLO]


@pytest.mark.parametrize(
    ("role", "content", "continues"), [("user", "Hi", False), ("assistant", "Hi", True), ("assistant", "", False)]
)
def test_a_final_assistant_message_is_continued(role: str, content: str, continues: bool) -> None:
    assert body(messages=[HELLO, {"role": role, "content": content}]).continues is continues


def test_sampling_has_native_names_and_nothing_that_was_left_out() -> None:
    assert body().sampling() == {"max_new_tokens": 4}
    sampling = body(temperature=0, top_p=0.5, top_k=3, stop_sequences=["x"]).sampling()
    assert sampling == {"max_new_tokens": 4, "temperature": 0, "top_p": 0.5, "top_k": 3, "stop": ["x"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"output_config": {"effort": "low"}},
        {"tool_choice": {"type": "auto"}},
        {"metadata": {"user_id": "u"}},
        {"service_tier": "auto"},
        {"messages": [{"role": "user", "content": [{**blocks("Hi")[0], "cache_control": {"type": "ephemeral"}}]}]},
    ],
    ids=repr,
)
def test_settings_without_effect_are_accepted(fields: dict[str, Any]) -> None:
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
        ({"messages": [{"role": "tool", "content": "x"}]}, "'user', 'assistant' or 'system'"),
        ({"messages": [{"role": "system", "content": "x"}]}, "there is no message of the user"),
        ({"messages": [{"role": "system", "content": [PICTURE]}, HELLO]}, "of the system has no content blocks"),
        ({"messages": [{"role": "user", "content": ""}]}, "message 0 is empty"),
        ({"messages": [{"role": "assistant", "content": ""}, HELLO]}, "message 0 is empty"),
        ({"messages": [HELLO, {"role": "assistant", "content": "So "}]}, "must not end with whitespace"),
        ({"messages": [{"role": "user", "content": blocks("")}]}, "must be non-empty"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "source\n  Field required"),
        ({"messages": [{"role": "user", "content": [image(type="file", file_id="x")]}]}, "'base64' or 'url'"),
        ({"messages": [{"role": "user", "content": [image(type="base64")]}]}, "has a field 'data'"),
        ({"messages": [{"role": "user", "content": [image(type="url", data="x")]}]}, "has a field 'url'"),
        (
            {"messages": [HELLO, {"role": "assistant", "content": [PICTURE]}, HELLO]},
            "of the assistant has no content blocks of type 'image'",
        ),
        ({"messages": [{"role": "user", "content": [USED]}]}, "of the user has no content blocks of type 'tool_use'"),
        ({"system": [PICTURE]}, "'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "type 'document' are not supported"),
        (
            {"messages": [{"role": "user", "content": [result("toolu_2")]}]},
            "message 0 has the result of an unknown call",
        ),
        ({"messages": [HELLO, {"role": "assistant", "content": [USED]}]}, "its result comes next"),
        ({"messages": [{"role": "user", "content": [result("toolu_1", [{"type": "document"}])]}]}, "'document'"),
        ({"tools": [{"name": "t"}]}, "input_schema"),
        ({"tools": [{"name": "a\nb", "input_schema": {}}]}, "name"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "type 'web_search_20250305' are not known",
        ),
        ({"tool_choice": {"type": "tool"}}, "has a field 'name'"),
        ({"tool_choice": {"type": "some"}}, "'auto', 'any', 'tool' or 'none'"),
        ({"thinking": {"type": "always"}}, "'enabled', 'adaptive' or 'disabled'"),
        ({"output_config": {"format": {"type": "text"}}}, "'json_schema'"),
        ({"context_management": {"edits": []}}, "'context_management' is not supported"),
        ({"mcp_servers": [{"url": "x"}]}, "'mcp_servers' is not supported"),
    ],
    ids=repr,
)
def test_unsupported_bodies_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        body(**fields)
