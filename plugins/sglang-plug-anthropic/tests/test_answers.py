from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_plug_anthropic.answers import Answer
from sglang_plug_anthropic.bodies import AnthropicBody

from sglang_plug import RequestError
from sglang_plug_api.plugin import ApiError, Ending, Job, NamedEvent, Piece

BODY = AnthropicBody.model_validate(
    {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]},
)


def piece(text: str, count: int, ending: Ending | None = None) -> Piece:
    return Piece(
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
    """An engine that yields these pieces and raises these errors."""

    def __init__(self, *steps: Piece | Exception, report: bool = True) -> None:
        self.config = SimpleNamespace(enable_cache_report=report)
        self._steps = steps
        self.closed = False

    async def stream(self, job: Job) -> AsyncGenerator[Piece, None]:
        try:
            for step in self._steps:
                if isinstance(step, Exception):
                    raise step
                yield step
        finally:
            self.closed = True


def streamed(script: Any) -> list[NamedEvent]:
    async def collect() -> list[NamedEvent]:
        return [event async for event in Answer(script, BODY, Job(tokens=[1, 2, 3, 4]), "req_1").events()]

    return asyncio.run(collect())


@pytest.mark.parametrize(("report", "read"), [(True, 2), (False, 0)])
def test_usage_counts_cached_tokens_apart_where_they_are_reported(report: bool, read: int) -> None:
    start, *_, delta, _ = streamed(Script(piece("Hi", 1), piece("", 2, Ending("stop", 7)), report=report))
    shared = {"input_tokens": 4 - read, "cache_creation_input_tokens": 0, "cache_read_input_tokens": read}
    assert start.data["message"]["usage"] == {**shared, "output_tokens": 1}
    assert delta.data["usage"] == {**shared, "output_tokens": 2}


@pytest.mark.parametrize(
    ("failure", "kind", "message"),
    [
        (piece("", 2, Ending("abort")), "invalid_request_error", "aborted"),
        (RequestError("too sad", 400), "invalid_request_error", "too sad"),
        (RuntimeError("a secret"), "api_error", "internal error"),
    ],
)
def test_what_fails_later_is_the_last_event(failure: Any, kind: str, message: str) -> None:
    script = Script(piece("Hi", 1), failure)
    *before, last = streamed(script)
    assert [event.name for event in before] == ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert (last.name, last.data["type"], last.data["request_id"]) == ("error", "error", "req_1")
    assert last.data["error"]["type"] == kind and message in last.data["error"]["message"]
    assert script.closed


@pytest.mark.parametrize("failure", [piece("", 0, Ending("abort")), RequestError("too sad", 503)])
def test_what_fails_at_once_is_raised(failure: Any) -> None:
    with pytest.raises((ApiError, RequestError)):
        streamed(Script(failure))


def test_a_block_is_opened_by_the_first_text() -> None:
    names = [event.name for event in streamed(Script(piece("", 1), piece("Hi", 2), piece("", 3, Ending("length"))))]
    opening = ["message_start", "content_block_start", "ping", "content_block_delta"]
    assert names == [*opening, "content_block_stop", "message_delta", "message_stop"]
