"""One response while it is generated, as the objects and events that clients get."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter

from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.streaming import NamedEvent
from sglang_plug_api.protocol.items import Item, messages_of
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.text.chat_events import ChatOutput, ChatParsingOptions
from sglang_plug_api.text.job import Ending, Job, JobOutput
from sglang_plug_api.text.logprobs import chat_logprob_entry
from sglang_plug_api.text.reasoning import reasoning_tokens
from sglang_plug_api.text.text_engine import TextEngine

from .input_items import full_items
from .output import Output, OutputEvent

FINAL_EVENTS = {"completed": "response.completed", "failed": "response.failed"}
"""Maps a status to the last event; other statuses end with ``response.incomplete``."""
UNSET_TOOL: Mapping[str, Any] = {"description": None, "parameters": None, "strict": False}
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])


class ActiveResponse:
    """A request for a response, and its output so far.

    Args:
        engine: generates the output.
        body: the request.
        messages: the conversation without instructions.
        job: the sequence to generate; its id is the response's id.
        parsing: parsers and options for parsing the output.
        keep: True to store the response.
    """

    def __init__(
        self,
        engine: TextEngine,
        body: ResponsesBody,
        messages: Sequence[Mapping[str, Any]],
        job: Job,
        parsing: ChatParsingOptions,
        *,
        keep: bool,
    ) -> None:
        self.job = job
        self.keep = keep
        self.items = full_items(body.input)
        """The items of the request's own input."""
        self._engine = engine
        self._body = body
        self._messages = messages
        self._chat_output = ChatOutput(parsing)
        self._output = Output(chat_logprob_entry(engine.tokenizer) if body.includes_logprobs else None)
        self._last_events: list[NamedEvent] = []
        self._created = int(time.time())
        self._completed: int | None = None
        self._tokens = self._cached = self._reasoning = self._sequence = 0
        self._ending: Ending | None = None
        self._error: ApiError | None = None
        self.started = self.cancelled = self.closed = False
        """True after ``first_events``, ``cancel`` and ``close``."""

    @property
    def id(self) -> str:
        """The response's id, ``resp_…``."""
        return self.job.id

    @property
    def status(self) -> str:
        """The status: ``queued`` (in the background only), ``in_progress``, then how it ended.

        It ends as ``completed``, ``incomplete``, ``cancelled`` or ``failed``.
        """
        if self._error is not None:
            return "failed"
        if self.cancelled:
            return "cancelled"
        if self._ending is None:
            return "cancelled" if self.closed else "in_progress" if self.started else "queued"
        return {"stop": "completed", "length": "incomplete"}.get(self._ending.reason, "cancelled")

    @property
    def background(self) -> bool:
        """True if no request waits for the response."""
        return bool(self._body.background)

    @property
    def streams(self) -> bool:
        """True if its events were asked for."""
        return bool(self._body.stream)

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """All messages, including the output."""
        return [*self._messages, *messages_of(ITEMS.validate_python(self._output.as_list()))]

    def add(self, output: JobOutput) -> list[NamedEvent]:
        """Add the next part of the output and return its events."""
        self._tokens = output.completion_tokens
        self._cached = output.cached_tokens
        self._ending = output.ending
        if self._body.includes_logprobs:
            token_bytes = self._engine.tokenizer.piece_bytes
            self._output.add_logprobs((token_bytes(item.token), item) for item in output.logprobs)
        return self._events(
            output_event for event in self._chat_output.events(output) for output_event in self._output.add(event)
        )

    async def count_reasoning(self) -> None:
        """Count the reasoning tokens for the usage; call it at the end of the output."""
        if (reasoning := self._chat_output.reasoning) is not None:
            self._reasoning = await reasoning_tokens(self._engine, [reasoning])

    @property
    def must_stop(self) -> bool:
        """True after ``cancel`` and ``fail``."""
        return self.cancelled or self._error is not None

    def cancel(self) -> None:
        """Abort the response on a client's request."""
        self.cancelled = True
        self._engine.abort(self.id, self.job.caller)

    def fail(self, error: ApiError) -> None:
        """Abort the response because of ``error``, unless it has ended."""
        if not self.closed:
            self._error = error
            self._engine.abort(self.id, self.job.caller)

    def close(self, error: ApiError | None = None) -> None:
        """End the response; no more output follows."""
        self.closed, self._error = True, self._error or error
        self._last_events = self._events(self._output.finish(whole=self.status == "completed"))
        if self.status == "completed":
            self._completed = int(time.time())

    def as_dict(self) -> dict[str, Any]:
        """Return the response object; its log-probabilities are a ``LargeList``."""
        body, params, status = self._body, self.job.sampling.params, self.status
        choice = body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed,
            "status": status,
            "background": self.background,
            "error": None if self._error is None else _error(self._error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model or self._engine.model_name,
            "output": self._output.as_list(),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": self.keep,
            "temperature": params.temperature,
            "text": {"format": body.text.format.model_dump() if body.text and body.text.format else {"type": "text"}},
            "tool_choice": choice.model_dump() if isinstance(choice, BaseModel) else choice or "auto",
            "tools": [{**UNSET_TOOL, **tool.model_dump(exclude_unset=True)} for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if self.closed else None,
            "user": body.user,
        }

    def queued_events(self) -> Iterator[NamedEvent]:
        """Yield the events of a response in the background that waits for its first token."""
        yield self._event("response.created", {"response": self.as_dict()})
        yield self._event("response.queued", {"response": self.as_dict()})

    def first_events(self) -> Iterator[NamedEvent]:
        """Yield the events before the first item; call it before any output is added."""
        self.started = True
        if not self.background:
            yield self._event("response.created", {"response": self.as_dict()})
        yield self._event("response.in_progress", {"response": self.as_dict()})

    def last_events(self) -> Iterator[NamedEvent]:
        """Yield the events of the end; call it after ``close``."""
        yield from self._last_events
        yield self._event(FINAL_EVENTS.get(self.status, "response.incomplete"), {"response": self.as_dict()})

    def _events(self, events: Iterable[OutputEvent]) -> list[NamedEvent]:
        return [self._event(name, fields) for name, fields in events]

    def _event(self, name: str, fields: Mapping[str, Any]) -> NamedEvent:
        number, self._sequence = self._sequence, self._sequence + 1
        return NamedEvent(name, {"type": name, "sequence_number": number, **fields})

    def _usage(self) -> dict[str, Any]:
        prompt = len(self.job.tokens)
        cached = self._cached if self._engine.config.enable_cache_report else 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning},
            "total_tokens": prompt + self._tokens,
            "prompt_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens": self._tokens,
            "completion_tokens_details": {"reasoning_tokens": self._reasoning},
        }


def _error(error: ApiError) -> dict[str, str]:
    """Return the error of a failed response in the terms of the Responses API."""
    return {"code": "invalid_prompt" if error.status == 400 else "server_error", "message": error.message}
