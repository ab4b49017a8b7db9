"""``/v1/responses`` with the official ``openai`` client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from .weather import ASK, FLAT_CLOCK, FLAT_WEATHER, check_weather, nested

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    """A client of the ``openai`` package, created as users create it."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="None", max_retries=0) as client:
        yield client


def test_create_and_retrieve(client: openai.OpenAI) -> None:
    response = client.responses.create(model="any", input=FRANCE, temperature=0, metadata={"topic": "capitals"})
    assert response.output_text == PARIS
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert response.usage is not None and response.usage.output_tokens == 8
    assert response.usage.input_tokens_details.cached_tokens == 0
    assert client.responses.retrieve(response.id) == response


def test_a_stream_of_typed_events(client: openai.OpenAI) -> None:
    text, kinds = "", []
    with client.responses.create(model="any", input=FRANCE, temperature=0, stream=True) as stream:
        for number, event in enumerate(stream):
            kinds.append(event.type)
            assert event.sequence_number == number
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type == "response.completed":
                assert event.response.output_text == PARIS
    assert text == PARIS
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")


def test_the_clients_own_accumulator(client: openai.OpenAI) -> None:
    """``responses.stream`` checks the order of events, and builds the response from them."""
    with client.responses.stream(model="any", input=FRANCE, temperature=0) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == PARIS
    assert client.responses.retrieve(final.id).output_text == PARIS


def test_a_chain_of_turns(client: openai.OpenAI) -> None:
    first = client.responses.create(model="any", input=FRANCE, temperature=0)
    second = client.responses.create(
        model="any", input="And of Japan?", temperature=0, previous_response_id=first.id, instructions="Be brief."
    )
    turns: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": FRANCE},
        {"role": "assistant", "content": PARIS},
        {"role": "user", "content": "And of Japan?"},
    ]
    chat = client.chat.completions.create(model="any", messages=turns, temperature=0)
    assert second.output_text == chat.choices[0].message.content
    assert second.usage is not None and chat.usage is not None
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    history: Any = [{"role": "user", "content": FRANCE}, *first.output, {"role": "user", "content": "And of Japan?"}]
    by_hand = client.responses.create(model="any", input=history, temperature=0, instructions="Be brief.")
    assert by_hand.output_text == second.output_text


def test_cancel_a_stream(client: openai.OpenAI, server: Any) -> None:
    extra = {"ignore_eos": True}
    last = None
    with client.responses.create(model="any", input="Tell me a story.", stream=True, extra_body=extra) as stream:
        for event in stream:
            last = event
            if event.type == "response.output_text.delta" and event.sequence_number < 8:
                assert event.item_id
            if event.type == "response.created":
                assert client.responses.cancel(event.response.id).status == "cancelled"
    assert last is not None and last.type == "response.incomplete"
    assert last.response.status == "cancelled"
    assert client.responses.retrieve(last.response.id).status == "cancelled"
    server.wait_whole()


def test_delete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="any", input=FRANCE, max_output_tokens=2)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="any", input="And?", previous_response_id=response.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_refusals_name_the_field(client: openai.OpenAI) -> None:
    hosted: Any = {"tools.0": [{"type": "web_search"}], "truncation": "middle", "input": []}
    for field, value in hosted.items():
        arguments: Any = {"model": "any", "input": FRANCE, field.partition(".")[0]: value}
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(**arguments, stream=stream)
            assert caught.value.param == field


def ask(client: openai.OpenAI, input: Any = ASK, **options: Any) -> Any:
    options = {"temperature": 0, "max_output_tokens": 128, "tools": [FLAT_WEATHER], **options}
    return client.responses.create(model="demo", input=input, **options)


def test_auto_calls_as_chat_does(client: openai.OpenAI) -> None:
    response = ask(client)
    (item,) = response.output
    assert (item.type, item.status, response.status, response.output_text) == (
        "function_call", "completed", "completed", "",
    )  # fmt: skip
    assert item.id.startswith("fc_") and item.call_id.startswith("call_")
    tools: Any = [nested(FLAT_WEATHER)]
    turns: Any = [{"role": "user", "content": ASK}]
    chat: Any = client.chat.completions.create(model="demo", messages=turns, tools=tools, temperature=0)
    (call,) = chat.choices[0].message.tool_calls
    assert (item.name, item.arguments) == (call.function.name, call.function.arguments)
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert client.responses.retrieve(response.id) == response


def test_required_and_named_calls_are_valid(client: openai.OpenAI) -> None:
    for item in ask(client, tool_choice="required").output:
        check_weather(item.name, item.arguments)
    (item,) = ask(client, tools=[FLAT_WEATHER, FLAT_CLOCK], tool_choice=FLAT_CLOCK).output
    assert (item.name, item.arguments) == ("get_time", "{}")
    hidden = ask(client, tool_choice="none")
    assert {item.type for item in hidden.output} == {"message"}
    assert hidden.usage.input_tokens < ask(client).usage.input_tokens


def test_calls_in_a_stream(client: openai.OpenAI) -> None:
    """The client's own accumulator checks the order of events."""
    options: Any = {"tools": [FLAT_WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    snapshots, done = [], []
    with client.responses.stream(model="demo", input=ASK, temperature=0, **options) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                snapshots.append(event.snapshot)
            if event.type == "response.function_call_arguments.done":
                done.append(event.arguments)
        final: Any = stream.get_final_response()
    (item,) = final.output
    check_weather(item.name, item.arguments)
    assert [item.arguments] == done == snapshots[-1:]
    (kept,) = client.responses.retrieve(final.id).output
    assert kept.to_dict().items() <= item.to_dict().items()


def test_the_turn_after_a_call(client: openai.OpenAI, server: Any) -> None:
    first = ask(client, tool_choice="required")
    output = '{"temperature": 72, "conditions": "sunny"}'
    results = [{"type": "function_call_output", "call_id": item.call_id, "output": output} for item in first.output]
    by_id = ask(client, results, previous_response_id=first.id)
    by_hand = ask(client, [{"role": "user", "content": ASK}, *first.output, *results])
    assert by_id.output_text and by_id.output_text == by_hand.output_text
    assert by_id.usage.input_tokens == by_hand.usage.input_tokens > first.usage.input_tokens + 20
    with pytest.raises(openai.BadRequestError, match="No tool call found for function call output"):
        ask(client, results)
    server.wait_whole()
