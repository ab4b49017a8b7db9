"""Tools and reasoning on ``/v1/chat/completions``, over an engine that says what it is told to."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from sglang_plug import Plugins
from sglang_plug_api.app import build_app
from sglang_plug_api.middleware import GateState
from sglang_plug_api.parsers import load_parsers
from sglang_plug_api.sampling import SamplingDefaults

CHAT = "/v1/chat/completions"
CALL_ID = re.compile(r"call_[0-9a-f]{24}\Z")
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ASK = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 400, "tools": [WEATHER, CLOCK]}
ARGUMENTS = '{"city": "Boston"}'
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "clock"}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "clock"}}


class Chat:
    """Asks the application."""

    def __init__(self, engine: Any, plugins: Plugins) -> None:
        transport = httpx.ASGITransport(build_app(engine, plugins, GateState()), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def post(self, path: str = CHAT, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=fields)

    async def choice(self, **fields: Any) -> Any:
        answer = await self.post(**{**ASK, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    async def deltas(self, **fields: Any) -> tuple[list[Any], str]:
        """Every delta but the first, and the reason of the end."""
        answer = await self.post(**{**ASK, **fields, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
        assert lines[-2:] == ["[DONE]", ""]
        choices = [json.loads(line)["choices"][0] for line in lines[:-2]]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert choices[-1]["delta"] == {} and all(one["finish_reason"] is None for one in choices[:-1])
        return [one["delta"] for one in choices[1:-1]], choices[-1]["finish_reason"]

    async def refusal(self, path: str = CHAT, **fields: Any) -> tuple[str, str | None]:
        answer = await self.post(path, **fields)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]["message"], answer.json()["error"]["param"]


@pytest.fixture
async def chat_of(text_engine: Any) -> AsyncIterator[Callable[..., Chat]]:
    """``chat_of(tool_call_parser=…, reasoning_parser=…)``."""
    made: list[Chat] = []
    plugins = Plugins.discover()

    def make(tool_call_parser: str = "hermes", **options: Any) -> Chat:
        engine = text_engine(tool_call_parser=tool_call_parser, **options)
        room = {**engine.info, "context_length": 4096, "max_total_tokens": 8192}
        engine.defaults = SamplingDefaults(engine.config, room, engine.tokenizer.eos_token_ids)
        engine.parsers = load_parsers(engine.config, plugins, engine.tokenizer)
        made.append(Chat(engine, plugins))
        return made[-1]

    yield make
    for chat in made:
        await chat.client.aclose()


async def test_a_call(chat_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    choice = await chat_of().choice()
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == (None, None)
    (call,) = message["tool_calls"]
    assert CALL_ID.match(call["id"]) and call["type"] == "function"
    assert call["function"] == {"name": "weather", "arguments": ARGUMENTS}
    assert choice["finish_reason"] == "tool_calls"
    assert scripted.requests[-1].constraint is None


async def test_text_and_several_calls(chat_of: Any, scripted: Any) -> None:
    scripted.reply = f"Both.\n{CALL}\n{TIME}"
    message = (await chat_of().choice())["message"]
    assert message["content"] == "Both."
    calls = message["tool_calls"]
    assert [one["function"] for one in calls] == [
        {"name": "weather", "arguments": ARGUMENTS}, {"name": "clock", "arguments": "{}"},
    ]  # fmt: skip
    assert calls[0]["id"] != calls[1]["id"]
    message = (await chat_of().choice(parallel_tool_calls=False))["message"]
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["weather"]


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_stream(chat_of: Any, scripted: Any, burst: int) -> None:
    scripted.reply, scripted.burst = f"Both.\n{CALL}\n{TIME}", burst
    deltas, reason = await chat_of().deltas()
    assert reason == "tool_calls"
    assert "".join(one.get("content", "") for one in deltas) == "Both."
    calls: dict[int, list[Any]] = {}
    for one in deltas:
        for call in one.get("tool_calls", ()):
            calls.setdefault(call["index"], []).append(call)
    assert list(calls) == [0, 1]
    for index, name, arguments in ((0, "weather", ARGUMENTS), (1, "clock", "{}")):
        first, *rest = calls[index]
        assert CALL_ID.match(first.pop("id"))
        assert first == {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        assert all(one.keys() == {"index", "function"} for one in rest)
        assert "".join(one["function"]["arguments"] for one in rest) == arguments
    if burst == 1:
        assert len(calls[0]) > 10


async def test_an_answer_without_a_call(chat_of: Any, scripted: Any) -> None:
    scripted.reply = 'Use <tool_call>{"x": 1}</tool_call> then.'
    choice = await chat_of().choice()
    assert (choice["message"]["content"], choice["message"]["tool_calls"]) == (scripted.reply, None)
    assert choice["finish_reason"] == "stop"


async def test_a_call_that_was_cut_off_ends_by_length(chat_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    choice = await chat_of().choice(max_tokens=55)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith("{")


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
async def test_without_tools_nothing_is_looked_for(chat_of: Any, scripted: Any, fields: Any) -> None:
    scripted.reply = CALL
    choice = await chat_of().choice(**fields)
    assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


async def test_required_and_named_calls_are_constrained(chat_of: Any, scripted: Any) -> None:
    scripted.reply = TIME
    chat = chat_of()
    for choice, names in (("required", ["weather", "clock"]), (NAMED, ["clock"])):
        assert (await chat.choice(tool_choice=choice))["finish_reason"] == "tool_calls"
        constraint = scripted.requests[-1].constraint
        assert constraint.kind == "structural_tag"
        form = json.loads(constraint.source)["format"]
        assert form["at_least_one"] and form["stop_after_first"] == (choice == NAMED)
        assert form["tags"][-1]["content"]["json_schema"]["additionalProperties"] is False
        assert [name for name in ("weather", "clock") if f'"{name}"' in str(form)] == names
    strict = {"type": "function", "function": {**CLOCK["function"], "strict": True}}
    await chat.choice(tools=[WEATHER, strict])
    assert json.loads(scripted.requests[-1].constraint.source)["format"]["type"] == "triggered_tags"


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [], "tool_choice": "required"}, "Tools cannot be empty if tool choice is set to required.", None),
        ({"tools": None, "tool_choice": NAMED}, "Tools cannot be empty if tool choice is set to a named tool.", None),
        ({"tool_choice": {"function": {"name": "x"}}}, "Tool 'x' not found in tools list.", None),
        ({"tools": [CLOCK, CLOCK]}, "two tools are called 'clock'", "tools.1.function.name"),
        ({"tools": [{"type": "web"}]}, "tools.0.type: Input should be 'function'", "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "tools.0.function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools.0.function.parameters: Input should be an object", "tools.0.function.parameters",
        ),
        ({"tool_choice": "must"}, "tool_choice: Input should be 'none', 'auto' or 'required'", None),
        ({"tool_choice": "required", "regex": "a"}, "contradict each other", None),
    ],
)  # fmt: skip
async def test_refusals(chat_of: Any, scripted: Any, fields: Any, message: str, param: str | None) -> None:
    found = await chat_of().refusal(**{**ASK, **fields})
    assert message in found[0] and found[1] == (param or "tool_choice")
    assert scripted.requests == []


async def test_without_a_parser_tools_are_refused(chat_of: Any) -> None:
    assert "--tool-call-parser none" in (await chat_of("none").refusal(**ASK))[0]
    assert "no chat template" in (await chat_of("auto").refusal(**ASK))[0]
    message, param = await chat_of("pythonic").refusal(**ASK, tool_choice="required")
    assert "cannot be enforced in the format" in message and param == "tool_choice"


THOUGHT = {"reasoning_parser": "qwen3"}


async def test_reasoning(chat_of: Any, scripted: Any) -> None:
    scripted.reply = f"<think>\nHm {CALL}.\n</think>\n\nYes."
    chat = chat_of(**THOUGHT)
    message = (await chat.choice())["message"]
    assert (message["reasoning_content"], message["content"]) == (f"Hm {CALL}.", "Yes.")
    assert message["tool_calls"] is None
    message = (await chat.choice(separate_reasoning=False, tools=None))["message"]
    assert (message["reasoning_content"], message["content"]) == (None, scripted.reply)
    await chat.choice(regex="a+")
    message = (await chat.choice(regex="a+"))["message"]
    assert message["content"].startswith("<think>"), "a constrained output is all answer"


@pytest.mark.parametrize("stream_reasoning", [True, False])
async def test_reasoning_in_a_stream(chat_of: Any, scripted: Any, stream_reasoning: bool) -> None:
    scripted.reply = f"<think>One two.</think>\n{TIME}"
    deltas, reason = await chat_of(**THOUGHT).deltas(stream_reasoning=stream_reasoning)
    thoughts = [one["reasoning_content"] for one in deltas if "reasoning_content" in one]
    assert "".join(thoughts) == "One two." and (len(thoughts) == 1) == (not stream_reasoning)
    assert "reasoning_content" in deltas[0] and "tool_calls" in deltas[-1]
    assert reason == "tool_calls" and not any("content" in one for one in deltas)


async def test_reasoning_that_never_ends_is_told_at_the_end(chat_of: Any, scripted: Any) -> None:
    scripted.reply = "Hm hm"
    deltas, reason = await chat_of(reasoning_parser="deepseek-r1").deltas(stream_reasoning=False)
    assert (deltas, reason) == ([{"reasoning_content": "Hm hm"}], "stop")


async def test_every_token_keeps_its_logprob(chat_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    answer = await chat_of().post(**ASK, logprobs=True, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
    found = [one for event in events for one in (event["choices"][0]["logprobs"] or {}).get("content", ())]
    assert "".join(one["token"] for one in found) == CALL + "\x01"


async def test_parse_function_call(chat_of: Any) -> None:
    chat = chat_of()
    path = "/parse_function_call"
    calls = [{"tool_index": 0, "name": "weather", "parameters": ARGUMENTS}]
    answer = await chat.post(path, text=f"Ok.\n{CALL}", tools=[WEATHER])
    assert answer.json() == {"normal_text": "Ok.", "calls": calls}
    answer = await chat.post(path, text="[weather(city='Boston')]", tool_call_parser="pythonic")
    assert answer.json() == {"normal_text": "", "calls": calls}
    message, param = await chat.refusal(path, text="x", tool_call_parser="pythonix")
    assert "did you mean 'pythonic'" in message and param == "tool_call_parser"
    assert (await chat_of("none").refusal(path, text="x"))[1] == "tools"


async def test_separate_reasoning(chat_of: Any) -> None:
    path = "/separate_reasoning"
    answer = await chat_of().post(path, text="Hm.</think>Yes.", reasoning_parser="deepseek-r1")
    assert answer.json() == {"reasoning_text": "Hm.", "text": "Yes."}
    assert (await chat_of(**THOUGHT).post(path, text="Yes.")).json() == {"reasoning_text": "", "text": "Yes."}
    assert (await chat_of().refusal(path, text="x"))[1] == "reasoning_parser"
