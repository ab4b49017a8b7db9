"""Tests of tools and reasoning on ``/v1/responses``, over a scripted engine."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.api.letters import Letters

PATH = "/v1/responses"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "description": "Now", "parameters": SCHEMA, "strict": False}
CLOCK = {"type": "function", "name": "clock"}
NAMED = {"type": "function", "name": "clock"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}
ASK = {"input": "?", "max_output_tokens": 400, "tools": [WEATHER, CLOCK]}
ARGUMENTS = '{"city": "Boston"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,YQ=="}
TIME = '<tool_call>\n{"name": "clock"}\n</tool_call>'
CALL_IDS = {"id": re.compile(r"fc_[0-9a-f]{32}\Z"), "call_id": re.compile(r"call_[0-9a-f]{24}\Z")}


class Client:
    """A client for ``/v1/responses`` of the application."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def create(self, **fields: Any) -> Any:
        answer = await self._client.post(PATH, json={**ASK, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def stream(self, **fields: Any) -> list[dict[str, Any]]:
        answer = await self._client.post(PATH, json={**ASK, **fields, "stream": True})
        assert answer.status_code == 200, answer.text
        events = [json.loads(block.partition("data: ")[2]) for block in answer.text.split("\n\n")[:-1]]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        return events

    async def refusal(self, **fields: Any) -> tuple[str, str | None]:
        answer = await self._client.post(PATH, json={**ASK, **fields})
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]["message"], answer.json()["error"]["param"]


@pytest.fixture
def client_of(scripted_client: Any) -> Callable[..., Client]:
    """Return a function that makes a client: ``client_of(tool_call_parser=…, reasoning_parser=…)``."""
    return lambda *names, **options: Client(scripted_client(*names, **options))


async def test_the_log_has_the_caller_s_id_and_the_response_s(
    scripted_client: Any, scripted: Any, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.reply = "Yes."
    client = scripted_client(log_requests=True)
    with caplog.at_level(logging.INFO):
        answer = await client.post(PATH, json={"input": "?"}, headers={"X-Request-Id": "caller/7"})
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Request ")]
    assert answer.headers["x-request-id"] == "caller/7"
    assert f"id='{answer.json()['id']}'" in line and "request='caller/7'" in line


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key not in CALL_IDS} for item in items]


def call_item(name: str, arguments: str, status: str = "completed") -> dict[str, Any]:
    return {"type": "function_call", "status": status, "name": name, "arguments": arguments}


async def test_a_call_is_an_item(client_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    response = await client_of().create(parallel_tool_calls=False, tool_choice="auto")
    (item,) = response["output"]
    assert all(form.match(item[name]) for name, form in CALL_IDS.items())
    assert without_ids([item]) == [call_item("weather", ARGUMENTS)]
    assert (response["status"], response["parallel_tool_calls"], response["tool_choice"]) == (
        "completed",
        False,
        "auto",
    )
    assert response["tools"] == [WEATHER, {**CLOCK, "description": None, "parameters": None, "strict": False}]
    assert scripted.requests[-1].constraint is None


async def test_text_and_several_calls(client_of: Any, scripted: Any) -> None:
    scripted.reply = f"Both.\n{CALL}\n{TIME}"
    response = await client_of().create()
    message, *calls = response["output"]
    assert (message["type"], message["status"], message["content"][0]["text"]) == ("message", "completed", "Both.")
    assert without_ids(calls) == [call_item("weather", ARGUMENTS), call_item("clock", "{}")]
    assert len({call["call_id"] for call in calls}) == len({item["id"] for item in calls}) == 2
    output = (await client_of().create(parallel_tool_calls=False))["output"]
    assert [item["type"] for item in output] == ["message", "function_call"]


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_a_stream(client_of: Any, scripted: Any, burst: int) -> None:
    scripted.reply, scripted.burst = f"Both.\n{CALL}\n{TIME}", burst
    events = await client_of().stream()
    kinds = [event["type"].removeprefix("response.") for event in events]
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    assert [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", *call, *call, "completed",
    ]  # fmt: skip
    final = events[-1]["response"]
    for index, item in enumerate(final["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
        assert own[-1]["item"] == item and own[0]["item"]["status"] == "in_progress"
        if item["type"] == "function_call":
            assert own[0]["item"] == {**item, "status": "in_progress", "arguments": ""}
            deltas = [event["delta"] for event in own if event["type"].endswith(".delta")]
            assert "".join(deltas) == own[-2]["arguments"] == item["arguments"]
            assert own[-2]["name"] == item["name"]
            assert index == 2 or (len(deltas) > 2) == (burst < 9)


async def test_a_call_that_was_cut_off_is_incomplete(client_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    for response in (
        await client_of().create(max_output_tokens=55),
        (await client_of().stream(max_output_tokens=55))[-1]["response"],
    ):
        assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        (item,) = response["output"]
        assert item["status"] == "incomplete" and ARGUMENTS.startswith(item["arguments"])


async def test_a_call_that_a_stop_string_cuts_off_is_incomplete(client_of: Any, scripted: Any) -> None:
    scripted.reply, client = CALL, client_of()
    for response in (await client.create(stop="ston"), (await client.stream(stop="ston"))[-1]["response"]):
        assert without_ids(response["output"]) == [call_item("weather", '{"city": "Bo', "incomplete")]
    scripted.reply, client = "<tool_call>\n<function=weather>\n<parameter=city>\n", client_of("qwen3_coder")
    for response in (await client.create(stop="parameter"), (await client.stream(stop="parameter"))[-1]["response"]):
        assert "function_call" not in [item["type"] for item in response["output"]]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
async def test_without_tools_nothing_is_looked_for(client_of: Any, scripted: Any, fields: Any) -> None:
    scripted.reply = CALL
    (item,) = (await client_of().create(**fields))["output"]
    assert item["content"][0]["text"] == CALL


async def test_required_and_named_calls_are_constrained(client_of: Any, scripted: Any) -> None:
    scripted.reply = TIME
    client = client_of()
    for choice, names in (("required", ["weather", "clock"]), (NAMED, ["clock"])):
        assert (await client.create(tool_choice=choice))["tool_choice"] == choice
        constraint = scripted.requests[-1].constraint
        assert constraint.kind == "structural_tag"
        assert ("star" in constraint.source) == (choice != NAMED) and "any_text" not in constraint.source
        assert [name for name in ("weather", "clock") if f'\\"{name}\\"' in constraint.source] == names
    await client.create(tools=[WEATHER, {**CLOCK, "strict": True}])
    assert "any_text" in scripted.requests[-1].constraint.source


class Visible(Letters):
    """A tokenizer whose chat template returns its arguments as JSON."""

    def chat(self, messages: Any, *, tools: Any = None, **options: Any) -> str:
        return json.dumps([messages, tools], sort_keys=True)


async def test_the_prompt_is_that_of_chat(client_of: Any, scripted_client: Any, scripted: Any) -> None:
    scripted.reply = f"Both.\n{CALL}\n{TIME}"
    client, chat = client_of(tokenizer=Visible()), scripted_client(tokenizer=Visible())
    first = await client.create()
    ids = [item["call_id"] for item in first["output"] if item["type"] == "function_call"]
    returned = ["rain", [{"type": "input_text", "text": "7"}]]
    results = [
        {"type": "function_call_output", "call_id": id, "output": output}
        for id, output in zip(ids, returned, strict=True)
    ]
    await client.create(input=results, previous_response_id=first["id"])
    by_id = scripted.requests[-1].tokens
    await client.create(input=[{"role": "user", "content": "?"}, *first["output"], *results])
    by_hand = scripted.requests[-1].tokens
    functions = [{"name": "weather", "arguments": ARGUMENTS}, {"name": "clock", "arguments": "{}"}]
    calls = [{"id": id, "type": "function", "function": function} for id, function in zip(ids, functions, strict=True)]
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "Both.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": ids[0], "content": "rain"},
        {"role": "tool", "tool_call_id": ids[1], "content": "7"},
    ]
    tools = [
        {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}
        for tool in (WEATHER, CLOCK)
    ]
    answer = await chat.post("/v1/chat/completions", json={"messages": messages, "tools": tools, "max_tokens": 400})
    assert answer.status_code == 200, answer.text
    assert by_id == by_hand == scripted.requests[-1].tokens


THOUGHT = {"reasoning_parser": "qwen3"}


async def test_reasoning_is_an_item(client_of: Any, scripted: Any) -> None:
    scripted.reply = f"<think>One two.</think>\n{TIME}"
    client = client_of(**THOUGHT)
    response = await client.create()
    thought, call = response["output"]
    assert thought.pop("id").startswith("rs_")
    content = [{"type": "reasoning_text", "text": "One two."}]
    assert thought == {"type": "reasoning", "summary": [], "status": "completed", "content": content}
    assert without_ids([call]) == [call_item("clock", "{}")]
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": len("One two.")}
    events = await client.stream()
    assert events[-1]["response"]["usage"] == response["usage"]
    own = [event for event in events if event.get("output_index") == 0]
    kinds = [event["type"].removeprefix("response.") for event in own]
    assert (kinds[:2], kinds[-3:]) == (
        ["output_item.added", "content_part.added"],
        ["reasoning_text.done", "content_part.done", "output_item.done"],
    )
    assert "".join(event["delta"] for event in own[2:-3]) == own[-3]["text"] == "One two."


async def test_reasoning_that_was_cut_off(client_of: Any, scripted: Any) -> None:
    scripted.reply = "<think>One two."
    (item,) = (await client_of(**THOUGHT).create(max_output_tokens=10))["output"]
    assert (item["type"], item["status"]) == ("reasoning", "incomplete")


async def test_of_the_tools_only_those_allowed(client_of: Any, scripted: Any) -> None:
    scripted.reply = TIME
    response = await client_of().create(tool_choice=ALLOWED)
    assert (response["tool_choice"], len(response["tools"])) == (ALLOWED, 2)
    constraint = scripted.requests[-1].constraint
    assert "clock" in constraint.source and "weather" not in constraint.source


async def test_log_probabilities_are_those_of_the_text(client_of: Any, scripted: Any) -> None:
    """The log-probabilities of a message are those of its text, without the reasoning before it and without calls."""
    scripted.reply = "<think>Hm.</think>Yes~!"
    events = await client_of(reasoning_parser="qwen3").stream(top_logprobs=1)
    final = events[-1]["response"]
    thought, message = final["output"]
    assert "logprobs" not in thought["content"][0]
    logprobs = message["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in logprobs).rstrip(chr(1)) == message["content"][0]["text"] == "Yes~!"
    assert all(len(entry["top_logprobs"]) == 1 and entry["bytes"] for entry in logprobs)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    streamed = [entry for event in deltas for entry in event["logprobs"]]
    assert streamed == logprobs[: len(streamed)] and len(streamed) >= len("Yes~!")
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert (await client_of(reasoning_parser="qwen3").create(top_logprobs=1))["output"][1]["content"] == message[
        "content"
    ]
    assert done["logprobs"] == logprobs and final["top_logprobs"] == 1
    scripted.reply = CALL
    (call,) = (await client_of().create(top_logprobs=1))["output"]
    assert call["type"] == "function_call" and "logprobs" not in call


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", **fields}]}


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required.", None),
        ({"tools": None, "tool_choice": NAMED}, "Tools cannot be empty if tool choice is set to a named tool.", None),
        ({"tool_choice": {"type": "function", "name": "x"}}, "Tool 'x' not found in tools list.", None),
        ({"tool_choice": {"type": "function"}}, "Field required", "tool_choice.name"),
        ({"tool_choice": {"type": "web_search"}}, "'web_search' is not supported", None),
        ({"tool_choice": {**ALLOWED, "tools": []}}, "at least 1 item", "tool_choice.tools"),
        ({"tool_choice": {**ALLOWED, "tools": [{"type": "function", "name": "x"}]}}, "Tool 'x' not found", None),
        ({"tool_choice": ALLOWED, "tools": None}, "Tool 'clock' not found", None),
        ({"tool_choice": "must"}, "tool_choice: Input should be 'none', 'auto' or 'required'", None),
        ({"tool_choice": "required", "regex": "a"}, "cannot be combined with a format", None),
        ({"tools": [{"type": "web_search"}]}, "tools of type 'web_search' are not supported", "tools.0"),
        ({"tools": [{"name": "f"}]}, "Field required", "tools.0.type"),
        (function(function={"name": "f"}), "belong next to type", "tools.0"),
        (function(name=""), "at least 1 character", "tools.0.name"),
        (function(name="f", parameters=[]), "Input should be an object", "tools.0.parameters"),
        (function(name="f", parameters={"type": None}), "must be 'object', not None", "tools.0.parameters"),
        ({"tools": [CLOCK, CLOCK]}, "two tools are called 'clock'", "tools.1.name"),
        (
            {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]},
            "No tool call found for function call output with call_id 'call_1'.", "input",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": [IMAGE]}]},
            "'input_image'", "input.0.output",
        ),
    ],
)  # fmt: skip
async def test_refusals(client_of: Any, scripted: Any, fields: Any, message: str, param: str | None) -> None:
    error = await client_of().refusal(**fields)
    assert message in error[0] and error[1] == (param or "tool_choice")
    assert scripted.requests == []


async def test_without_a_parser_tools_are_refused(client_of: Any) -> None:
    message, param = await client_of("none").refusal()
    assert "--tool-call-parser none" in message and param == "tools"
