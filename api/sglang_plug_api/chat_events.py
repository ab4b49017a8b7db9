"""What a chat answer consists of: text, reasoning and calls, as a stream of deltas or as one message."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.parsers import Event, joined

from .job import Piece

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the outputs of one request are read.

    ``separate`` tells reasoning apart from the answer; ``stream_reasoning`` shows it as it comes and not at once.
    """

    tools: type[OutputParser] | None = None
    reasoning: type[OutputParser] | None = None
    parallel: bool = True
    lead: str = ""
    """The end of the prompt that the parser of reasoning has to see."""
    separate: bool = True
    stream_reasoning: bool = True

    @property
    def needs_special_tokens(self) -> bool:
        """True if texts must have the model's special tokens in them."""
        return any(one is not None and one.needs_special_tokens for one in (self.tools, self.reasoning))


class Choice:
    """One output while it comes: text in, deltas or a message out."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._reasoning = reading.reasoning() if reading.reasoning and reading.separate else None
        if self._reasoning is not None and reading.lead:
            self._reasoning.feed(reading.lead)
        self._tools = reading.tools() if reading.tools else None
        self._calls = 0
        self._thoughts: list[str] = []
        self._reasoning_texts: list[str] = []

    @property
    def reasoning(self) -> str | None:
        """All reasoning so far; ``None`` if it is not told apart from the answer."""
        return None if self._reasoning is None else "".join(self._reasoning_texts)

    def events(self, piece: Piece) -> list[Event]:
        """What ``piece`` brought."""
        found = self._read(piece.text, ends=piece.ending is not None)
        self._reasoning_texts += (event.text for event in found if isinstance(event, Reasoning))
        return [event for event in joined(found) if self._is_wanted(event)]

    def deltas(self, piece: Piece) -> Iterator[dict[str, Any]]:
        """``delta`` objects of a stream."""
        for event in self._reordered(self.events(piece)):
            match event:
                case Text(text):
                    yield {"content": text}
                case Reasoning(text):
                    yield {"reasoning_content": text}
                case CallStart(index, name, id):
                    self._calls += 1
                    call = {"index": index, **_call(name, "", id)}
                    yield {TOOL_CALLS: [call]}
                case CallArguments(index, text):
                    yield {TOOL_CALLS: [{"index": index, "function": {"arguments": text}}]}
        if piece.ending is not None and self._thoughts:
            yield {"reasoning_content": self._all_thoughts()}

    def message(self, piece: Piece) -> dict[str, Any]:
        """The ``message`` of a whole output."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for event in self.events(piece):
            match event:
                case Text(text):
                    texts.append(text)
                case Reasoning(text):
                    thoughts.append(text)
                case CallStart(_, name, id):
                    calls.append(_call(name, "", id))
                case CallArguments(_, text):
                    calls[-1]["function"]["arguments"] += text
        self._calls = len(calls)
        return {
            "role": "assistant",
            "content": "".join(texts) or (None if calls else ""),
            "reasoning_content": "".join(thoughts) or None,
            "tool_calls": calls or None,
        }

    def finish_reason(self, piece: Piece) -> str | None:
        """Why the output ended; to be asked once everything has been read."""
        if piece.ending is None:
            return None
        return TOOL_CALLS if self._calls and piece.ending.reason == "stop" else piece.ending.reason

    def _read(self, text: str, *, ends: bool) -> list[Event]:
        if self._reasoning is None:
            return self._read_calls(text, ends=ends)
        events = self._reasoning.feed(text) + (self._reasoning.finish() if ends else [])
        found: list[Event] = []
        for event in events:
            found += self._read_calls(event.text, ends=False) if isinstance(event, Text) else [event]
        return found + self._read_calls("", ends=ends)

    def _read_calls(self, text: str, *, ends: bool) -> list[Event]:
        if self._tools is None:
            return [Text(text)] if text else []
        return self._tools.feed(text) + (self._tools.finish() if ends else [])

    def _is_wanted(self, event: Event) -> bool:
        """Without ``parallel_tool_calls`` the first call is the only one."""
        if not isinstance(event, CallStart | CallArguments | CallEnd):
            return True
        return self._reading.parallel or event.index == 0

    def _reordered(self, events: Iterable[Event]) -> Iterator[Event]:
        """``events``; reasoning that is not to be streamed comes at once, before what follows it."""
        for event in events:
            if isinstance(event, Reasoning) and not self._reading.stream_reasoning:
                self._thoughts.append(event.text)
                continue
            if self._thoughts:
                yield Reasoning(self._all_thoughts())
            yield event

    def _all_thoughts(self) -> str:
        found, self._thoughts = "".join(self._thoughts), []
        return found


def new_call_id() -> str:
    """The id of a call: ``call_`` and 24 hexadecimal digits."""
    return f"call_{uuid.uuid4().hex[:24]}"


def _call(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    return {"id": id or new_call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
