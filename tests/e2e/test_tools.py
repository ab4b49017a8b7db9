"""Tools with the official ``openai`` client against a real server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from .weather import ASK as QUESTION
from .weather import FLAT_CLOCK, FLAT_WEATHER, check_weather, nested

ASK = [{"role": "user", "content": QUESTION}]
WEATHER, CLOCK = nested(FLAT_WEATHER), nested(FLAT_CLOCK)
NAMED = {"type": "function", "function": {"name": "get_time"}}


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, messages: Any = ASK, **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 128, "tools": [WEATHER, CLOCK], **options}
    return client.chat.completions.create(model="demo", messages=messages, **options)


def test_auto_calls(client: openai.OpenAI) -> None:
    choice = ask(client, tools=[WEATHER]).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    assert call.id.startswith("call_") and call.type == "function" and call.function.name
    assert "Boston" in json.loads(call.function.arguments).values()  # a small model may misname the argument


def test_auto_streams_the_same_call(client: openai.OpenAI) -> None:
    (whole,) = ask(client, tools=[WEATHER]).choices[0].message.tool_calls
    parts = [part for chunk in ask(client, tools=[WEATHER], stream=True) for part in _calls(chunk)]
    assert parts[0].function.name == whole.function.name and parts[0].id.startswith("call_")
    assert len(parts) > 4 and not any(part.id or part.function.name for part in parts[1:])
    assert "".join(part.function.arguments for part in parts) == whole.function.arguments


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_required_calls_are_valid(client: openai.OpenAI, temperature: float) -> None:
    for seed in range(3):
        options = {"tools": [WEATHER], "tool_choice": "required", "seed": seed, "max_tokens": 512}
        choice = ask(client, temperature=temperature, **options).choices[0]
        if choice.finish_reason == "length":
            continue  # a hot model may write a city without end
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        for call in choice.message.tool_calls:
            check_weather(call.function.name, call.function.arguments)
        assert temperature or len(choice.message.tool_calls) == 1


def test_required_streams(client: openai.OpenAI) -> None:
    chunks = list(ask(client, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True))
    parts = [part for chunk in chunks for part in _calls(chunk)]
    check_weather(parts[0].function.name, "".join(part.function.arguments for part in parts))
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_named_calls_that_function_only(client: openai.OpenAI) -> None:
    choice = ask(client, tool_choice=NAMED).choices[0]
    assert [call.function.name for call in choice.message.tool_calls] == ["get_time"]
    assert choice.message.tool_calls[0].function.arguments == "{}"


STRICT = nested(FLAT_WEATHER, strict=True)


@pytest.mark.parametrize("grammar_backend", ["xgrammar", "llguidance"])
def test_strict_calls_are_valid_and_other_answers_free(client: openai.OpenAI, grammar_backend: str) -> None:
    pytest.importorskip(grammar_backend)
    named: Any = {"extra_body": {"grammar_backend": grammar_backend}, "tools": [STRICT, CLOCK]}
    choice = ask(client, **named).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    (call,) = choice.message.tool_calls
    check_weather(call.function.name, call.function.arguments)
    parts = [part for chunk in ask(client, **named, stream=True) for part in _calls(chunk)]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments
    weather_calls = 0
    for seed in range(6):
        choice = ask(client, **named, temperature=1.5, seed=seed, max_tokens=300).choices[0]
        for call in choice.message.tool_calls or () if choice.finish_reason != "length" else ():
            weather_calls += call.function.name == "get_current_weather"
            if call.function.name == "get_current_weather":
                check_weather(call.function.name, call.function.arguments)
    assert weather_calls
    france: Any = [{"role": "user", "content": "What is the capital of France?"}]
    message = ask(client, france, **named).choices[0].message
    assert (message.content, message.tool_calls) == ("The capital of France is Paris.", None)


def test_a_tool_that_is_not_strict_may_have_any_schema_with_one_that_is(client: openai.OpenAI) -> None:
    odd = {**FLAT_WEATHER, "parameters": {"properties": {"x": {"not": {}}}}}
    (call,) = ask(client, tools=[nested(odd), nested(FLAT_CLOCK, strict=True)]).choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments), dict)
    with pytest.raises(openai.BadRequestError, match="'not' at #/properties/x cannot be enforced"):
        ask(client, tools=[nested(odd, strict=True)])


def test_a_backend_that_cannot_enforce_calls_is_refused_with_those_that_can(client: openai.OpenAI) -> None:
    pytest.importorskip("outlines_core")
    with pytest.raises(
        openai.BadRequestError, match="outlines cannot enforce this kind; installed that can: .*xgrammar"
    ):
        ask(client, tool_choice="required", extra_body={"grammar_backend": "outlines"})


def test_none_hides_the_tools(client: openai.OpenAI) -> None:
    hidden = ask(client, tool_choice="none")
    assert hidden.choices[0].message.tool_calls is None
    assert hidden.usage.prompt_tokens < ask(client).usage.prompt_tokens


def test_several_turns(client: openai.OpenAI) -> None:
    message = ask(client, tools=[WEATHER], tool_choice="required").choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 72, "conditions": "sunny"}'}
    turns = [*ASK, message.model_dump(exclude_none=True), result]
    answer = ask(client, turns, tools=[WEATHER])
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None
    assert answer.usage.prompt_tokens > ask(client, tools=[WEATHER]).usage.prompt_tokens + 20


def test_refusals(client: openai.OpenAI, server: Any) -> None:
    for options, words in (
        ({"tools": [], "tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required."),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "Tool 'x' not found in tools list."),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            ask(client, **options)
    server.wait_whole()


def _calls(chunk: Any) -> list[Any]:
    return [part for choice in chunk.choices for part in choice.delta.tool_calls or ()]


FORMATS = ["pythonic", "gpt-oss", "mistral", "llama3", "deepseekv3", "qwen3_coder", "kimi_k2"]


SAMPLING = [{"seed": seed, "temperature": temperature} for seed, temperature in enumerate((0, 1, 2, 5))]


def at_once(client: openai.OpenAI, *requests: dict[str, Any]) -> list[Any]:
    """Send chat requests at the same time, which the server computes together; return their choices."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return [answer.choices[0] for answer in pool.map(lambda options: ask(client, **options), requests)]


@pytest.fixture(scope="module", params=FORMATS)
def other_format(module_launcher: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server of the demo model with the tool call format of another model."""
    with contextlib.closing(module_launcher.in_thread("--tool-call-parser", request.param)) as server:
        yield server


def test_required_calls_are_valid_in_other_formats(other_format: Any) -> None:
    required = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 300}
    with openai.OpenAI(base_url=f"{other_format.url}/v1", api_key="None", max_retries=0) as client:
        named, *others = at_once(
            client,
            {"tool_choice": NAMED, "parallel_tool_calls": False},
            *({**required, **sampling} for sampling in SAMPLING),
            *({"tools": [STRICT], **sampling} for sampling in SAMPLING),
        )
        assert [call.function.name for call in named.message.tool_calls] == ["get_time"]
        assert json.loads(named.message.tool_calls[0].function.arguments) == {}
        for choice in others[: len(SAMPLING)]:
            if choice.finish_reason == "length":
                continue  # a hot model may write a city without end
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
            for call in choice.message.tool_calls:
                check_weather(call.function.name, call.function.arguments)
        for choice in others[len(SAMPLING) :]:
            assert choice.message.content or choice.message.tool_calls
            for call in choice.message.tool_calls or () if choice.finish_reason != "length" else ():
                check_weather(call.function.name, call.function.arguments)
        limit = {"type": "array", "uniqueItems": True}
        odd = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": limit}}}}
        with pytest.raises(
            openai.BadRequestError, match=r"uniqueItems at #/properties/x|properties\.x: uniqueItems at #"
        ):
            ask(client, tools=[odd], tool_choice="required")
    other_format.wait_whole()
