from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_plug_anthropic.answers import Answer
from sglang_plug_anthropic.bodies import AnthropicBody

from sglang_plug import CallArguments, CallEnd, CallStart, Reasoning, RequestError, Text
from sglang_plug_api.plugin import ApiError, Ending, Job, JobOutput, NamedEvent

BODY = AnthropicBody.model_validate(
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]},
)


def job_output(text: str, count: int, ending: Ending | None = None) -> JobOutput:
    return JobOutput(
        text=text,
        tokens=(count,),
        logprobs=(),
        prompt_logprobs=(),
        ending=ending,
        completion_tokens=count,
        cached_tokens=2,
        retractions=0,
    )


class Script:
    """An engine that yields given outputs and raises given errors."""

    def __init__(self, *steps: JobOutput | Exception, report: bool = True) -> None:
        self.config = SimpleNamespace(enable_cache_report=report)
        self._steps = steps
        self.closed = False

    async def complete(self, job: Job) -> JobOutput:
        (step,) = self._steps
        assert isinstance(step, JobOutput)
        return step

    async def stream(self, job: Job) -> AsyncGenerator[JobOutput, None]:
        try:
            for step in self._steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed = True


class Reader:
    """Reader of a script's outputs."""

    def __init__(self, *events: list[Any]) -> None:
        self._events = iter(events)

    def events(self, output: JobOutput) -> list[Any]:
        return next(self._events, [Text(output.text)] if output.text else [])


def answer(script: Any, reader: Any = None, **fields: Any) -> Answer:
    body = BODY.model_validate({**BODY.model_dump(exclude_unset=True), **fields})
    return Answer(script, body, Job(id="msg_1", tokens=[1, 2, 3, 4]), reader or Reader(), "req_1")


def streamed(script: Any, reader: Any = None, **fields: Any) -> list[NamedEvent]:
    async def collect() -> list[NamedEvent]:
        return [event async for event in answer(script, reader, **fields).events()]

    return asyncio.run(collect())


@pytest.mark.parametrize(("report", "read"), [(True, 2), (False, 0)])
def test_usage_counts_cached_tokens_apart_where_they_are_reported(report: bool, read: int) -> None:
    start, *_, delta, _ = streamed(Script(job_output("Hi", 1), job_output("", 2, Ending("stop", 7)), report=report))
    shared = {"input_tokens": 4 - read, "cache_creation_input_tokens": 0, "cache_read_input_tokens": read}
    assert start.data["message"]["usage"] == {**shared, "output_tokens": 1}
    assert delta.data["usage"] == {**shared, "output_tokens": 2}


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (job_output("", 2, Ending("abort")), "invalid_request_error", "aborted"),
        (RequestError("too sad", 400), "invalid_request_error", "too sad"),
        (RuntimeError("a secret"), "api_error", "internal error"),
    ],
)
def test_later_failures_are_the_last_event(failure: Any, kind: str, message: str) -> None:
    script = Script(job_output("Hi", 1), failure)
    *before, last = streamed(script)
    assert [event.name for event in before] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert (last.name, last.data["type"], last.data["request_id"]) == ("error", "error", "req_1")
    assert last.data["error"]["type"] == kind and message in last.data["error"]["message"]
    assert script.closed


@pytest.mark.parametrize("failure", [job_output("", 0, Ending("abort")), RequestError("too sad", 503)])
def test_immediate_failures_are_raised(failure: Any) -> None:
    with pytest.raises((ApiError, RequestError)):
        streamed(Script(failure))


def test_a_block_is_opened_by_the_first_text() -> None:
    names = [
        event.name
        for event in streamed(Script(job_output("", 1), job_output("Hi", 2), job_output("", 3, Ending("length"))))
    ]
    opening = ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert names == [*opening, "content_block_stop", "message_delta", "message_stop"]


STOP = Ending("stop", 7)
CALL = [CallStart(0, "weather"), CallArguments(0, '{"city": '), CallArguments(0, '"Lima"}'), CallEnd(0)]
SHOWN = {"thinking": {"type": "adaptive"}}


def content_events(events: list[NamedEvent]) -> list[tuple[Any, ...]]:
    """Return the events between the start of the message and its end, without pings."""
    results: list[tuple[Any, ...]] = []
    for event in events[1:-2]:
        kind = event.name.removeprefix("content_block_")
        if kind != "ping":
            held = event.data.get("content_block") or event.data.get("delta") or {}
            results.append((kind, event.data["index"], *(value for name, value in held.items() if name != "id")))
    return results


def test_calls_are_blocks_of_their_own() -> None:
    reader = Reader([Text("Let me see.")], CALL[:2], [*CALL[2:], CallStart(1, "time", "toolu_x"), CallEnd(1)])
    events = streamed(Script(job_output("a", 1), job_output("b", 2), job_output("c", 3, STOP)), reader)
    assert content_events(events) == [
        ("start", 0, "text", ""),
        ("delta", 0, "text_delta", "Let me see."),
        ("stop", 0),
        ("start", 1, "tool_use", "weather", {}),
        ("delta", 1, "input_json_delta", '{"city": '),
        ("delta", 1, "input_json_delta", '"Lima"}'),
        ("stop", 1),
        ("start", 2, "tool_use", "time", {}),
        ("stop", 2),
    ]
    assert events[-2].data["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    ids = [event.data["content_block"].get("id") for event in events if event.name == "content_block_start"]
    assert ids[1].startswith("toolu_") and ids[2] == "toolu_x"


def test_a_whole_message_has_the_arguments_as_an_object() -> None:
    script = Script(job_output("x", 3, STOP))
    result = asyncio.run(answer(script, Reader([Text("So:"), *CALL])).whole())
    text, call = result["content"]
    assert text == {"type": "text", "text": "So:"}
    assert {**call, "id": ""} == {"type": "tool_use", "id": "", "name": "weather", "input": {"city": "Lima"}}
    assert result["stop_reason"] == "tool_use"


@pytest.mark.parametrize("broken", ['{"city": ', "[1]", "{'a': 1}"])
@pytest.mark.parametrize(("ending", "reason"), [(STOP, "end_turn"), (Ending("length"), "max_tokens")])
def test_calls_that_nobody_can_make_are_left_out(broken: str, ending: Ending, reason: str) -> None:
    events = [CallStart(0, "weather"), CallArguments(0, broken)]
    result = asyncio.run(answer(Script(job_output("x", 3, ending)), Reader(events)).whole())
    assert (result["content"], result["stop_reason"]) == ([], reason)
    streamed_events = streamed(Script(job_output("x", 3, ending)), Reader(events))
    assert streamed_events[-2].data["delta"]["stop_reason"] == reason


def test_thoughts_are_shown_to_those_who_ask() -> None:
    thought = [Reasoning("Hm"), Reasoning("."), Text("Lima")]
    result = asyncio.run(answer(Script(job_output("x", 3, STOP)), Reader(thought), **SHOWN).whole())
    assert result["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "msg_1"},
        {"type": "text", "text": "Lima"},
    ]
    assert content_events(streamed(Script(job_output("x", 3, STOP)), Reader(thought), **SHOWN)) == [
        ("start", 0, "thinking", "", ""),
        ("delta", 0, "thinking_delta", "Hm"),
        ("delta", 0, "thinking_delta", "."),
        ("delta", 0, "signature_delta", "msg_1"),
        ("stop", 0),
        ("start", 1, "text", ""),
        ("delta", 1, "text_delta", "Lima"),
        ("stop", 1),
    ]
    hidden = asyncio.run(answer(Script(job_output("x", 3, STOP)), Reader(thought)).whole())
    assert hidden["content"] == [{"type": "text", "text": "Lima"}]


def test_a_stop_sequence_is_reported_even_after_a_call() -> None:
    result = asyncio.run(answer(Script(job_output("x", 3, Ending("stop", "END"))), Reader(CALL)).whole())
    assert (result["stop_reason"], result["stop_sequence"]) == ("stop_sequence", "END")
