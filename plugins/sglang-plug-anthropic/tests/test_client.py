"""Anthropic's own client against a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic", reason="the client is not installed: pip install anthropic")

QUESTION: dict[str, Any] = {
    "model": "demo",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "extra_body": {"temperature": 0},
}
ANSWER = "The capital of France is Paris."


@pytest.fixture
def client(url: str, key: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(url: str, key: str) -> AsyncIterator[Any]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0) as client:
        yield client


def test_a_message(client: Any) -> None:
    message = client.messages.create(**QUESTION)
    assert (message.content[0].type, message.content[0].text) == ("text", ANSWER)
    assert (message.role, message.type, message.model) == ("assistant", "message", "demo")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens > 1
    assert message._request_id.startswith("req_")


def test_a_stream(client: Any) -> None:
    with client.messages.stream(**QUESTION) as stream:
        parts = list(stream.text_stream)
        message = stream.get_final_message()
    assert len(parts) > 1
    assert "".join(parts) == message.content[0].text == ANSWER
    assert message.stop_reason == "end_turn"
    assert message.usage.output_tokens == client.messages.create(**QUESTION).usage.output_tokens


def test_raw_events(client: Any) -> None:
    kinds = [event.type for event in client.messages.create(**QUESTION, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert {"content_block_start", "content_block_delta", "content_block_stop", "message_delta"} <= set(kinds)


async def test_asynchronously(async_client: Any) -> None:
    message = await async_client.messages.create(**QUESTION)
    assert message.content[0].text == ANSWER
    async with async_client.messages.stream(**QUESTION) as stream:
        assert "".join([part async for part in stream.text_stream]) == ANSWER


def test_several_turns_with_a_system_prompt_and_blocks(client: Any) -> None:
    first = client.messages.create(**QUESTION)
    turns = [
        *QUESTION["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of Japan?"}]},
    ]
    second = client.messages.create(**{**QUESTION, "messages": turns}, system="You are a helpful assistant.")
    assert "Tokyo" in second.content[0].text


def test_a_system_prompt_among_the_messages_is_one_all_the_same(client: Any) -> None:
    brief = {"role": "system", "content": "You are a helpful assistant."}
    among = client.messages.create(**{**QUESTION, "messages": [brief, *QUESTION["messages"]]})
    separate = client.messages.create(**QUESTION, system="You are a helpful assistant.")
    assert among.content[0].text == separate.content[0].text
    assert among.usage.input_tokens == separate.usage.input_tokens


def test_stop_sequences(client: Any) -> None:
    message = client.messages.create(**QUESTION, stop_sequences=["Paris"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")
    assert message.content[0].text == "The capital of France is "


def test_tokens_are_counted(client: Any) -> None:
    counted = client.messages.count_tokens(model="demo", messages=QUESTION["messages"])
    usage = client.messages.create(**QUESTION).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_refusals_are_its_own_exceptions(client: Any, url: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match="'mcp_servers' is not supported") as refusal:
        client.messages.create(**{**QUESTION, "extra_body": {"mcp_servers": [{"url": "x"}]}})
    assert refusal.value.body["error"]["type"] == "invalid_request_error"
    assert refusal.value.request_id.startswith("req_")
    with anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as unauthorized:
        with pytest.raises(anthropic.AuthenticationError, match="API key"):
            unauthorized.messages.create(**QUESTION)


WEATHER: Any = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"enum": ["Boston", "Lima"]}}, "required": ["city"]},
}


def test_tools(client: Any) -> None:
    request: dict[str, Any] = {**QUESTION, "max_tokens": 64, "tools": [WEATHER], "tool_choice": {"type": "any"}}
    request["messages"] = [{"role": "user", "content": "What's the weather like in Boston today?"}]
    message = client.messages.create(**request)
    call = message.content[-1]
    assert (message.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "get_weather")
    assert call.input in ({"city": "Boston"}, {"city": "Lima"})
    with client.messages.stream(**request) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert "input_json" in kinds
    assert [(block.name, block.input) for block in streamed.content] == [
        (block.name, block.input) for block in message.content
    ]
    results = [{"type": "tool_result", "tool_use_id": item.id, "content": "sunny"} for item in message.content]
    turns = [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = client.messages.create(
        **{**request, "messages": request["messages"] + turns, "tool_choice": {"type": "none"}}
    )
    assert answer.content[0].type == "text"


def test_the_tool_runner(client: Any) -> None:
    called = []

    @anthropic.beta_tool
    def get_current_weather(city: str, state: str = "") -> str:
        """Get the weather of a city."""
        called.append(city)
        return "sunny"

    question = [{"role": "user", "content": "What's the weather like in Boston today?"}]
    *turns, last = client.beta.messages.tool_runner(
        **{**QUESTION, "max_tokens": 128, "messages": question, "tools": [get_current_weather]}
    )
    assert [turn.stop_reason for turn in turns] == ["tool_use"] and called == ["Boston"]
    assert (last.stop_reason, last.content[0].type) == ("end_turn", "text")
