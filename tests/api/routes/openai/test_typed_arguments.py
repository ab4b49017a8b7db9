"""Arguments that a model writes as plain text get the types in the schemas of the request's tools."""

from __future__ import annotations

import json
from typing import Any

import pytest

CALL = """Wait.
<tool_call>
<function=weather>
<parameter=zip>
02108
</parameter>
<parameter=days>
3
</parameter>
</function>
</tool_call>"""
PARAMETERS = {"type": "object", "properties": {"zip": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
ASK = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 400, "tools": [WEATHER]}
TYPED = '{"zip": "02108", "days": 3}'


async def test_chat(scripted_client: Any, scripted: Any) -> None:
    scripted.reply = CALL
    answer = await scripted_client("qwen3_coder").post("/v1/chat/completions", json=ASK)
    (choice,) = answer.json()["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Wait.")
    assert [call["function"] for call in choice["message"]["tool_calls"]] == [{"name": "weather", "arguments": TYPED}]


@pytest.mark.parametrize("burst", [1, 9, 1000])
async def test_stream(scripted_client: Any, scripted: Any, burst: int) -> None:
    scripted.reply, scripted.burst = CALL, burst
    answer = await scripted_client("qwen3_coder").post("/v1/chat/completions", json={**ASK, "stream": True})
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]
    calls = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == TYPED


async def test_a_call_ends_reasoning_unless_it_is_constrained(scripted_client: Any, scripted: Any) -> None:
    scripted.reply = f"<think>Hm. {CALL.removeprefix('Wait.')}</think>"
    client = scripted_client("qwen3_coder", reasoning_parser="glm45")
    answer = await client.post("/v1/chat/completions", json=ASK)
    message = answer.json()["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert [call["function"]["arguments"] for call in message["tool_calls"]] == [TYPED]
    answer = await client.post("/v1/chat/completions", json={**ASK, "tool_choice": "required"})
    message = answer.json()["choices"][0]["message"]
    assert message["tool_calls"] is None and "<parameter=zip>" in message["reasoning_content"]


async def test_responses(scripted_client: Any, scripted: Any) -> None:
    scripted.reply = CALL
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    answer = await scripted_client("qwen3_coder").post("/v1/responses", json={"input": "?", "tools": [tool]})
    assert [item["arguments"] for item in answer.json()["output"] if item["type"] == "function_call"] == [TYPED]


async def test_parsing_only(scripted_client: Any) -> None:
    body = {"text": CALL, "tool_call_parser": "qwen3_coder"}
    client = scripted_client()
    answer = await client.post("/parse_function_call", json={**body, "tools": [WEATHER]})
    assert answer.json()["calls"] == [{"tool_index": 0, "name": "weather", "parameters": TYPED}]
    guessed = (await client.post("/parse_function_call", json=body)).json()["calls"][0]["parameters"]
    assert json.loads(guessed) == {"zip": "02108", "days": 3}  # 02108 is no number in JSON


async def test_what_cannot_be_enforced_is_refused(scripted_client: Any) -> None:
    client = scripted_client("qwen3_coder")
    for parameters, words in (
        ({**PARAMETERS, "anyOf": [{"required": ["zip"]}]}, "tools[0].function.parameters: the keyword 'anyOf'"),
        ({"properties": {"a>b": {}}}, "tools[0].function.parameters: 'a>b' cannot be the name of an argument"),
    ):
        tools = [{"type": "function", "function": {"name": "weather", "parameters": parameters}}]
        answer = await client.post("/v1/chat/completions", json={**ASK, "tools": tools, "tool_choice": "required"})
        assert answer.status_code == 400 and words in answer.json()["error"]["message"], answer.text
