"""One response while it is made, and the objects and events that show it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang_plug_api.errors import ApiError
from sglang_plug_api.job import Ending, Job, Piece, new_id
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.streaming import NamedEvent
from sglang_plug_api.text import TextEngine

WHERE = {"output_index": 0, "content_index": 0}
FINAL_EVENTS = {"completed": "response.completed", "failed": "response.failed"}
"""Status -> last event; of the others it is ``response.incomplete``."""


class Call:
    """What was asked, and what has come of it so far.

    Args:
        engine: who answers.
        body: the request.
        messages: the conversation, without instructions.
        job: the sequence to generate; its id is the response's.
        keep: remember the response.
    """

    def __init__(
        self, engine: TextEngine, body: ResponsesBody, messages: Sequence[Mapping[str, Any]], job: Job, *, keep: bool
    ) -> None:
        self.job, self.keep = job, keep
        self._engine, self._body, self._messages = engine, body, messages
        self._message_id = f"msg_{new_id()}"
        self._created = int(time.time())
        self._completed: int | None = None
        self._text: list[str] = []
        self._tokens = self._cached = self._sequence = 0
        self._ending: Ending | None = None
        self._error: ApiError | None = None
        self._cancelled = self._closed = False

    @property
    def id(self) -> str:
        """``resp_…``."""
        return self.job.id

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._text)

    @property
    def status(self) -> str:
        """``in_progress``, then ``completed``, ``incomplete``, ``cancelled`` or ``failed``."""
        if self._error is not None:
            return "failed"
        if self._cancelled:
            return "cancelled"
        if self._ending is None:
            return "cancelled" if self._closed else "in_progress"
        return {"stop": "completed", "length": "incomplete"}.get(self._ending.reason, "cancelled")

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """All messages with the answer."""
        return [*self._messages, {"role": "assistant", "content": self.text}]

    def add(self, piece: Piece) -> None:
        """Take what came."""
        if piece.text:
            self._text.append(piece.text)
        self._tokens, self._cached, self._ending = piece.completion_tokens, piece.cached_tokens, piece.ending

    def cancel(self) -> None:
        """Somebody wants no more of it."""
        self._cancelled = True
        self._engine.abort(self.id)

    def close(self, error: ApiError | None = None) -> None:
        """Nothing more will come."""
        self._closed, self._error = True, error
        if self.status == "completed":
            self._completed = int(time.time())

    def show(self) -> dict[str, Any]:
        """The response object."""
        body, params, status = self._body, self.job.sampling.params, self.status
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": self._completed,
            "status": status,
            "background": False,
            "error": None if self._error is None else {"code": "server_error", "message": self._error.message},
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": body.model or self._engine.model_name,
            "output": [self._item()] if self._tokens or self._closed else [],
            "parallel_tool_calls": True,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": self.keep,
            "temperature": params.temperature,
            "text": {"format": body.text.format.model_dump() if body.text and body.text.format else {"type": "text"}},
            "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
            "tools": [],
            "top_logprobs": 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": self._usage() if self._closed else None,
            "user": body.user,
        }

    def opening(self) -> Iterator[NamedEvent]:
        """Events before the first text; to be called before anything was added."""
        yield self._event("response.created", response=self.show())
        yield self._event("response.in_progress", response=self.show())
        item = {**self._item(), "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event("response.content_part.added", **self._place(), part=_part(""))

    def delta(self, text: str) -> NamedEvent:
        """More text."""
        return self._event("response.output_text.delta", **self._place(), delta=text, logprobs=[])

    def closing(self) -> Iterator[NamedEvent]:
        """Events after the last text."""
        text = self.text
        yield self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        yield self._event("response.content_part.done", **self._place(), part=_part(text))
        yield self._event("response.output_item.done", output_index=0, item=self._item())
        yield self._event(FINAL_EVENTS.get(self.status, "response.incomplete"), response=self.show())

    def _event(self, name: str, **fields: Any) -> NamedEvent:
        number, self._sequence = self._sequence, self._sequence + 1
        return NamedEvent(name, {"type": name, "sequence_number": number, **fields})

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, **WHERE}

    def _item(self) -> dict[str, Any]:
        status = self.status
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "status": status if status in ("in_progress", "completed") else "incomplete",
            "content": [_part(self.text)],
        }

    def _usage(self) -> dict[str, Any]:
        prompt = len(self.job.tokens)
        cached = self._cached if self._engine.config.enable_cache_report else 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + self._tokens,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
