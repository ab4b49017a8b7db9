"""One message while it is made: the object and the events that show it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from sglang_plug_api.plugin import ApiError, ChatOutput, Ending, Job, JobOutput, NamedEvent, TextEngine, from_exception

from .bodies import AnthropicBody
from .content import Content
from .errors import envelope, logged

ABORTED = "the request was aborted through /abort_request"


class Answer:
    """A request and its output so far.

    Args:
        engine: who answers.
        body: the request.
        job: the sequence to generate; its id is the message's.
        output: reads what comes of it.
        request_id: what errors repeat.
    """

    def __init__(self, engine: TextEngine, body: AnthropicBody, job: Job, output: ChatOutput, request_id: str) -> None:
        self._engine, self._body, self._job, self._request_id = engine, body, job, request_id
        self._reader, self._content = output, Content(job.id, shows_thinking=body.shows_thinking)
        self._output = self._cached = 0

    async def whole(self) -> dict[str, Any]:
        """Return the message. Raises ``ApiError`` if it was aborted."""
        output = await self._engine.complete(self._job)
        self._count(output)
        for _ in self._content.add(self._reader.events(output)):
            pass  # the content keeps the data of the events
        stop = _stop(output.ending, calls=self._content.has_call)
        return {**self._message(), "content": self._content.show(), **stop, "usage": self._usage()}

    async def events(self) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of the stream. Errors before the first event are raised, later ones become events."""
        started = False
        try:
            async with contextlib.aclosing(self._message_events()) as events:
                async for event in events:
                    started = True
                    yield event
        except Exception as error:
            if not started:
                raise
            yield NamedEvent("error", envelope(logged(from_exception(error), error), self._request_id))

    async def _message_events(self) -> AsyncGenerator[NamedEvent, None]:
        started = False
        async with contextlib.aclosing(self._engine.stream(self._job)) as outputs:
            async for output in outputs:
                if output.ending is not None:
                    _stop(output.ending)  # an aborted request sends no further events
                self._count(output)
                if not started:
                    started = True
                    yield self._start()
                for event in self._content.add(self._reader.events(output)):
                    yield event
                if output.ending is None:
                    continue
                for event in self._content.end():
                    yield event
                stop = _stop(output.ending, calls=self._content.has_call)
                yield _event("message_delta", delta=stop, usage=self._usage())
                yield _event("message_stop")

    def _count(self, output: JobOutput) -> None:
        self._output, self._cached = output.completion_tokens, output.cached_tokens

    def _start(self) -> NamedEvent:
        empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message={**self._message(), **empty, "usage": self._usage()})

    def _message(self) -> dict[str, Any]:
        return {"id": self._job.id, "type": "message", "role": "assistant", "model": self._body.model}

    def _usage(self) -> dict[str, int]:
        """Return the usage; cached prompt tokens are separate from the others, if the server reports them."""
        cached = self._cached if self._engine.config.enable_cache_report else 0
        return {
            "input_tokens": len(self._job.tokens) - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._output,
        }


def _event(kind: str, **fields: Any) -> NamedEvent:
    return NamedEvent(kind, {"type": kind, **fields})


def _stop(ending: Ending | None, *, calls: bool = False) -> dict[str, str | None]:
    """Return the stop reason in Anthropic's terms. Raises ``ApiError`` for an aborted request, which has none."""
    match ending:
        case Ending("stop", str(matched)):
            return {"stop_reason": "stop_sequence", "stop_sequence": matched}
        case Ending("stop"):
            return {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        case Ending("length"):
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        case _:
            raise ApiError(ABORTED)
