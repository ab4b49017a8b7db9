"""Tests of tools and reasoning on ``/v1/chat/completions``, over a scripted engine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sglang_plug import ReasoningPrefix
from sglang_plug_api.protocol.tools import MAX_PARSED_TEXT

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
    """A client for chat completions of the application."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client

    async def post(self, path: str = CHAT, **fields: Any) -> httpx.Response:
        return await self.client.post(path, json=fields)

    async def choice(self, **fields: Any) -> Any:
        answer = await self.post(**{**ASK, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]

    async def usage(self, **fields: Any) -> Any:
        answer = await self.post(**{**ASK, **fields})
        assert answer.status_code == 200, answer.text
        if fields.get("stream"):
            return json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
        return answer.json()["usage"]

    async def deltas(self, **fields: Any) -> tuple[list[Any], str]:
        """Return the deltas of a stream but the first, and the finish reason."""
        answer = await self.post(**{**ASK, **fields, "stream": True})
        assert answer.status_code == 200, answer.text
        lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n")]
        assert lines[-2:] == ["[DONE]", ""]
        choices = [json.loads(line)["choices"][0] for line in lines[:-2]]
        assert choices[0]["delta"] == {"role": "assistant", "content": "", "reasoning_content": None}
        assert choices[-1]["delta"] == {"reasoning_content": None} and all(
            choice["finish_reason"] is None for choice in choices[:-1]
        )
        return [choice["delta"] for choice in choices[1:-1]], choices[-1]["finish_reason"]

    async def refusal(self, path: str = CHAT, **fields: Any) -> tuple[str, str | None]:
        answer = await self.post(path, **fields)
        assert answer.status_code == 400, answer.text
        return answer.json()["error"]["message"], answer.json()["error"]["param"]


@pytest.fixture
def chat_of(scripted_client: Any) -> Callable[..., Chat]:
    """Return a function that makes a client: ``chat_of(tool_call_parser=…, reasoning_parser=…)``."""
    return lambda *names, **options: Chat(scripted_client(*names, **options))


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
    assert [call["function"] for call in calls] == [
        {"name": "weather", "arguments": ARGUMENTS}, {"name": "clock", "arguments": "{}"},
    ]  # fmt: skip
    assert calls[0]["id"] != calls[1]["id"]
    message = (await chat_of().choice(parallel_tool_calls=False))["message"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_stream(chat_of: Any, scripted: Any, burst: int) -> None:
    scripted.reply, scripted.burst = f"Both.\n{CALL}\n{TIME}", burst
    deltas, reason = await chat_of().deltas()
    assert reason == "tool_calls"
    assert "".join(delta.get("content", "") for delta in deltas) == "Both."
    calls: dict[int, list[Any]] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            calls.setdefault(call["index"], []).append(call)
    assert list(calls) == [0, 1]
    for index, name, arguments in ((0, "weather", ARGUMENTS), (1, "clock", "{}")):
        first, *following = calls[index]
        assert CALL_ID.match(first.pop("id"))
        assert first == {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
        assert all(delta.keys() == {"index", "function"} for delta in following)
        assert "".join(delta["function"]["arguments"] for delta in following) == arguments
    if burst == 1:
        assert len(calls[0]) > 10


@pytest.mark.parametrize("burst", [1, 7, 1000])
async def test_text_around_calls_is_the_same_in_a_stream(chat_of: Any, scripted: Any, burst: int) -> None:
    scripted.burst, chat = burst, chat_of()
    for reply, content in (
        (f" Both. \n{CALL}\n Then. \n{TIME}\n\nDone. \n", " Both.Then.Done. \n"),
        (f"\n{CALL}\n", None),
        (f"{CALL} <tool_call>x", "<tool_call>x"),
    ):
        scripted.reply = reply
        assert (await chat.choice())["message"]["content"] == content
        deltas, _ = await chat.deltas()
        assert "".join(delta.get("content", "") for delta in deltas) == (content or "")


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


TAGGED_CALL = "<tool_call>\n<function=weather>\n<parameter=city>\nBoston\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize("stop", [{"stop": "ston"}, {"stop_regex": "s[t]on"}, {"stop_token_ids": [ord("B")]}])
async def test_a_call_that_a_stop_cuts_off_is_not_to_be_made(chat_of: Any, scripted: Any, stop: Any) -> None:
    scripted.reply = CALL
    choice = await chat_of().choice(**stop)
    assert choice["finish_reason"] == "stop" and choice["matched_stop"] in (*stop.values(), ord("B"))
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] in ('{"city": "Bo', '{"city": "Boston', '{"city": "')
    deltas, reason = await chat_of().deltas(**stop)
    assert reason == "stop"
    parts = [call["function"]["arguments"] for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(parts) == call["function"]["arguments"]


async def test_a_complete_call_before_a_stop_string_is_to_be_made(chat_of: Any, scripted: Any) -> None:
    scripted.reply = f"{CALL}\n{TIME}"
    choice = await chat_of().choice(stop="</tool_call>")
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", "</tool_call>")
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [ARGUMENTS]
    assert (await chat_of().deltas(stop="</tool_call>"))[1] == "tool_calls"


async def test_a_further_call_that_is_left_out_may_be_cut_off(chat_of: Any, scripted: Any) -> None:
    scripted.reply = CALL + CALL.replace("Boston", "Berlin")
    options: dict[str, Any] = {"parallel_tool_calls": False, "stop": "Berlin"}
    choice = await chat_of().choice(**options)
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["arguments"] for call in choice["message"]["tool_calls"]] == [ARGUMENTS]
    assert (await chat_of().deltas(**options))[1] == "tool_calls"


@pytest.mark.parametrize("stop", ["\n<parameter", "parameter", "=city"])
async def test_a_call_that_ends_before_its_arguments_is_left_out(chat_of: Any, scripted: Any, stop: str) -> None:
    """Clients take a call with empty arguments for one of a function without parameters."""
    scripted.reply, chat = TAGGED_CALL, chat_of("qwen3_coder")
    choice = await chat.choice(stop=stop)
    assert (choice["finish_reason"], choice["message"]["tool_calls"]) == ("stop", None)
    deltas, reason = await chat.deltas(stop=stop)
    assert reason == "stop" and not any("tool_calls" in delta for delta in deltas)


@pytest.mark.parametrize("burst", [1, 1000])
async def test_calls_are_counted_without_those_that_are_left_out(chat_of: Any, scripted: Any, burst: int) -> None:
    scripted.reply, scripted.burst = f"<tool_call>\n<function=clock>\nlater\n{TAGGED_CALL}", burst
    chat = chat_of("qwen3_coder")
    choice = await chat.choice(parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    deltas, reason = await chat.deltas()
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert reason == "tool_calls" and {call["index"] for call in calls} == {0}
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Boston"}


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
        assert ("star" in constraint.source) == (choice != NAMED) and "any_text" not in constraint.source
        assert schemas(constraint)[-1]["additionalProperties"] is False
        assert [name for name in ("weather", "clock") if f'\\"{name}\\"' in constraint.source] == names


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_of_the_tools_only_those_allowed(chat_of: Any, scripted: Any, mode: str) -> None:
    scripted.reply = TIME
    chat, allowed = chat_of(), {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [NAMED]}}
    assert (await chat.choice(tool_choice=allowed))["message"]["tool_calls"][0]["function"]["name"] == "clock"
    request = scripted.requests[-1]
    assert (await chat.choice(tools=[CLOCK], tool_choice=mode))["finish_reason"] == "tool_calls"
    same = scripted.requests[-1]
    assert (request.tokens, request.constraint) == (same.tokens, same.constraint)
    assert (request.constraint is not None) == (mode == "required")
    other = {"type": "function", "function": {"name": "x"}}
    wrong = {**allowed, "allowed_tools": {"mode": mode, "tools": [other]}}
    assert await chat.refusal(**{**ASK, "tool_choice": wrong}) == ("Tool 'x' not found in tools list.", "tool_choice")


@pytest.mark.parametrize("parser", ["hermes", "llama3", "mistral", "deepseekv3", "pythonic", "gpt-oss"])
async def test_strict_tools_are_constrained_and_others_are_only_named(chat_of: Any, scripted: Any, parser: str) -> None:
    scripted.reply = "Hello."
    strict = {"type": "function", "function": {**CLOCK["function"], "strict": True}}
    for parallel in (True, False):
        choice = await chat_of(parser).choice(tools=[WEATHER, strict], parallel_tool_calls=parallel)
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello.", "stop")
        constraint = scripted.requests[-1].constraint
        nothing = {"type": "object", "properties": {}, "additionalProperties": False}
        allowed = schemas(constraint)
        assert {"type": "object"} in allowed and nothing in allowed and len(allowed) >= 2
        assert all(schema in ({"type": "object"}, nothing) for schema in allowed)
        assert "any_text" in constraint.source


def schemas(constraint: Any) -> list[Any]:
    """Return the JSON schemas in a structural tag, in their order."""
    collected: list[Any] = []

    def take(node: Any) -> Any:
        return collected.append(node["json_schema"]) if "json_schema" in node else node

    json.loads(constraint.source, object_hook=take)
    return collected


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
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "must be 'object', not 'string'", "tools.0.function.parameters",
        ),
        ({"tool_choice": "must"}, "tool_choice: Input should be 'none', 'auto' or 'required'", None),
        ({"tool_choice": "required", "regex": "a"}, "cannot be combined with a format", None),
    ],
)  # fmt: skip
async def test_refusals(chat_of: Any, scripted: Any, fields: Any, message: str, param: str | None) -> None:
    error = await chat_of().refusal(**{**ASK, **fields})
    assert message in error[0] and error[1] == (param or "tool_choice")
    assert scripted.requests == []


async def test_without_a_parser_tools_are_refused(chat_of: Any) -> None:
    assert "--tool-call-parser none" in (await chat_of("none").refusal(**ASK))[0]
    assert "no chat template" in (await chat_of("auto").refusal(**ASK))[0]
    strict = {"type": "function", "function": {"name": "get time", "strict": True}}
    for choice in ("auto", "required"):
        message, param = await chat_of("pythonic").refusal(**{**ASK, "tools": [strict]}, tool_choice=choice)
        assert "'get time' cannot be called" in message and param == "tools"


THOUGHT = {"reasoning_parser": "qwen3"}


async def test_reasoning(chat_of: Any, scripted: Any) -> None:
    scripted.reply = f"<think>\nHm {CALL}.\n</think>\n\nYes."
    chat = chat_of(**THOUGHT)
    message = (await chat.choice())["message"]
    assert (message["reasoning_content"], message["content"]) == (f"Hm {CALL}.", "Yes.")
    assert message["tool_calls"] is None
    message = (await chat.choice(separate_reasoning=False, tools=None))["message"]
    assert (message["reasoning_content"], message["content"]) == (None, scripted.reply)


async def test_reasoning_is_counted(chat_of: Any, scripted: Any) -> None:
    scripted.reply = "<think>\nHm.\n</think>\n\nYes."
    chat, details = chat_of(**THOUGHT), "completion_tokens_details"
    for changes in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
        assert (await chat.usage(**changes))[details] == {"reasoning_tokens": len("Hm.")}
    assert (await chat.usage(n=2))[details] == {"reasoning_tokens": 2 * len("Hm.")}
    assert details not in await chat.usage(separate_reasoning=False)
    assert details not in await chat_of().usage()


def of(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


CLOSING = (of("</think>"),)


async def test_a_constraint_begins_after_the_reasoning(chat_of: Any, scripted: Any) -> None:
    scripted.reply = "<think>\nHm.\n</think>\n\nYes."
    message = (await chat_of(**THOUGHT).choice(tools=None, regex="[a-z]+"))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    assert scripted.requests[-1].reasoning_prefix == ReasoningPrefix(CLOSING, of("<think>"))
    scripted.reply = f"Hm.</think>{TIME}"
    message = (await chat_of(reasoning_parser="deepseek-r1").choice(tool_choice="required"))["message"]
    assert message["reasoning_content"] == "Hm." and message["tool_calls"][0]["function"]["name"] == "clock"
    assert scripted.requests[-1].reasoning_prefix == ReasoningPrefix(CLOSING)
    assert scripted.requests[-1].constraint is not None


async def test_a_constraint_after_reasoning_that_the_prompt_has_begun(chat_of: Any, scripted: Any) -> None:
    scripted.reply = "Hm.</think>Yes."
    messages = [{"role": "assistant", "content": "<think>"}]
    message = (await chat_of(**THOUGHT).choice(tools=None, regex="a+", messages=messages))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    assert scripted.requests[-1].reasoning_prefix == ReasoningPrefix(CLOSING)


@pytest.mark.parametrize("parser", ["qwen3", "deepseek-r1"])
@pytest.mark.parametrize(
    "fields",
    [
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
        {"messages": [{"role": "assistant", "content": "<think>\n\n</think>"}]},
        {"continue_final_message": True, "add_generation_prompt": False},
    ],
)
async def test_without_reasoning_a_constraint_holds_from_the_start(
    chat_of: Any, scripted: Any, parser: str, fields: dict[str, Any]
) -> None:
    scripted.reply = "Yes."
    message = (await chat_of(reasoning_parser=parser).choice(tools=None, regex="a+", **fields))["message"]
    assert (message["reasoning_content"], message["content"]) == (None, "Yes.")
    assert scripted.requests[-1].reasoning_prefix is None


async def test_reasoning_without_a_constraint_needs_no_preamble(chat_of: Any, scripted: Any) -> None:
    await chat_of(**THOUGHT).choice()
    assert scripted.requests[-1].reasoning_prefix is None


async def test_a_constraint_after_the_thoughts_of_gpt_oss(chat_of: Any, scripted: Any) -> None:
    thoughts, header = "<|channel|>analysis<|message|>Hm.", "<|start|>assistant"
    scripted.reply = f"{thoughts}<|end|>{header}<|channel|>final<|message|>Yes."
    names = ("gpt-oss",)
    message = (await chat_of(*names, reasoning_parser="gpt-oss").choice(tools=None, regex="a+"))["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "Yes.")
    final = ("<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>")
    assert scripted.requests[-1].reasoning_prefix == ReasoningPrefix(tuple(map(of, final)))
    call = f"{header}<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{{}}<|call|>"
    scripted.reply = f"{thoughts}<|end|>{call}"
    message = (await chat_of(*names, reasoning_parser="gpt-oss").choice(tool_choice="required"))["message"]
    assert message["reasoning_content"] == "Hm." and message["tool_calls"][0]["function"]["name"] == "clock"
    assert scripted.requests[-1].reasoning_prefix == ReasoningPrefix(
        (of("<|end|><|start|>assistant"),), of("<|channel|>analysis<|message|>")
    )


@pytest.mark.parametrize("stream_reasoning", [True, False])
async def test_reasoning_in_a_stream(chat_of: Any, scripted: Any, stream_reasoning: bool) -> None:
    scripted.reply = f"<think>One two.</think>\n{TIME}"
    deltas, reason = await chat_of(**THOUGHT).deltas(stream_reasoning=stream_reasoning)
    thoughts = [delta["reasoning_content"] for delta in deltas if delta["reasoning_content"] is not None]
    assert "".join(thoughts) == "One two." and (len(thoughts) == 1) == (not stream_reasoning)
    assert deltas[0]["reasoning_content"] and "tool_calls" in deltas[-1]
    assert reason == "tool_calls" and not any("content" in delta for delta in deltas)


async def test_reasoning_that_never_ends_is_told_at_the_end(chat_of: Any, scripted: Any) -> None:
    scripted.reply = "Hm hm"
    deltas, reason = await chat_of(reasoning_parser="deepseek-r1").deltas(stream_reasoning=False)
    assert (deltas, reason) == ([{"reasoning_content": "Hm hm"}], "stop")


async def test_every_token_keeps_its_logprob(chat_of: Any, scripted: Any) -> None:
    scripted.reply = CALL
    answer = await chat_of().post(**ASK, logprobs=True, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
    entries = [entry for event in events for entry in (event["choices"][0]["logprobs"] or {}).get("content", ())]
    assert "".join(entry["token"] for entry in entries) == CALL + "\x01"


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


@pytest.mark.parametrize("path", ["/parse_function_call", "/separate_reasoning"])
async def test_what_is_parsed_is_bounded(chat_of: Any, path: str) -> None:
    """The length of parsed texts is limited, because parsers take microseconds for each character of a call."""
    message, param = await chat_of().refusal(path, text="<" * (MAX_PARSED_TEXT + 1), reasoning_parser="deepseek-r1")
    assert (message, param) == (f"text: String should have at most {MAX_PARSED_TEXT} characters", "text")


THREAD_PARSERS = """
    import threading

    from sglang_plug import OutputParser, Text

    @hookimpl
    def register_output_parsers():
        yield ToolParserSpec(name="thread", target=f"{__name__}:ThreadName")
        yield ReasoningParserSpec(name="thread", target=f"{__name__}:ThreadName")

    class ThreadName(OutputParser):
        def feed(self, text):
            return [Text(threading.current_thread().name)]

        def finish(self):
            return []
"""
"""Parsers that return the name of the thread in which they parse, in place of the text."""


@pytest.mark.parametrize("path", ["/parse_function_call", "/separate_reasoning"])
async def test_parsing_does_not_hold_the_others(chat_of: Any, plugin_file: Any, path: str) -> None:
    chat = chat_of(files=(plugin_file("threads", THREAD_PARSERS),))
    names = {"tool_call_parser": "thread", "reasoning_parser": "thread"}
    answer = (await chat.post(path, text="x", **names)).json()
    (thread,) = {answer.get("text"), answer.get("normal_text")} - {None}
    assert thread and thread != threading.main_thread().name


async def test_parsers_read_a_long_output_in_pieces(chat_of: Any) -> None:
    """The parser is fed in parts: cutting each call off one long text would take quadratic time."""
    answer = await chat_of().post("/parse_function_call", text=f"Ok.{TIME}" * 2000)
    assert len(answer.json()["calls"]) == 2000
    assert answer.json()["normal_text"].count("Ok.") == 2000
