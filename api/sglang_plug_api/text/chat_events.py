"""A chat output as text, reasoning and calls: a stream of deltas or one message."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.contracts.text.parsers import Event, joined

from .job import JobOutput

TOOL_CALLS = "tool_calls"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatParsingOptions:
    """Parsers of the outputs of one request, and their options.

    ``separate`` splits reasoning from the answer; ``stream_reasoning`` sends it as it is generated, not all at once.
    """

    tools: type[OutputParser] | None = None
    reasoning: type[OutputParser] | None = None
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The functions that may be called: name -> JSON schema of the arguments."""
    calls_end_reasoning: bool = True
    """Calls may begin before the reasoning has ended, because nothing constrains them."""
    parallel: bool = True
    lead: str = ""
    """The end of the prompt, which the reasoning parser reads first."""
    separate: bool = True
    stream_reasoning: bool = True
    include_reasoning: bool = True
    """False leaves the reasoning out."""

    def sampling(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``params``, in native names, with the parameters that the parsers need."""
        parsers = [parser for parser in (self.tools, self.reasoning) if parser is not None]
        needs_special_tokens = any(parser.needs_special_tokens for parser in parsers)
        return {**params, **({"skip_special_tokens": False} if needs_special_tokens else {})}


class ChatOutput:
    """One output while it is generated: takes text, returns deltas or a message."""

    def __init__(self, parsing: ChatParsingOptions) -> None:
        self._parsing = parsing
        self._reasoning = _reasoning_parser(parsing)
        if self._reasoning is not None and parsing.lead:
            self._reasoning.feed(parsing.lead)
        self._tools = parsing.tools.for_functions(parsing.functions) if parsing.tools else None
        self._calls = 0
        self._waiting_start: CallStart | None = None
        self._last_arguments: list[str] = []  # of the last call that is not left out
        self._thoughts: list[str] = []
        self._reasoning_texts: list[str] = []

    @property
    def reasoning(self) -> str | None:
        """All reasoning so far; ``None`` if it is not split from the answer."""
        return None if self._reasoning is None else "".join(self._reasoning_texts)

    def events(self, output: JobOutput) -> list[Event]:
        """Return the events of ``output``."""
        events = self._read(output.text, ends=output.ending is not None)
        self._reasoning_texts += (event.text for event in events if isinstance(event, Reasoning))
        return [event for event in self._with_arguments(joined(events)) if self._is_allowed(event)]

    def deltas(self, output: JobOutput) -> Iterator[dict[str, Any]]:
        """Yield the ``delta`` objects of a stream."""
        for event in self._reordered(self.events(output)):
            match event:
                case Text(text):
                    yield {"content": text}
                case Reasoning(text):
                    yield {"reasoning_content": text}
                case CallStart(index, name, id):
                    call = {"index": index, **_call(name, "", id)}
                    yield {TOOL_CALLS: [call]}
                case CallArguments(index, text):
                    yield {TOOL_CALLS: [{"index": index, "function": {"arguments": text}}]}
        if output.ending is not None and self._thoughts:
            yield {"reasoning_content": self._all_thoughts()}

    def message(self, output: JobOutput) -> dict[str, Any]:
        """Return the ``message`` of a whole output."""
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, Any]] = []
        for event in self.events(output):
            match event:
                case Text(text):
                    texts.append(text)
                case Reasoning(text):
                    thoughts.append(text)
                case CallStart(_, name, id):
                    calls.append(_call(name, "", id))
                case CallArguments(_, text):
                    calls[-1]["function"]["arguments"] += text
        return {
            "role": "assistant",
            "content": "".join(texts) or (None if calls else ""),
            "reasoning_content": "".join(thoughts) or None,
            "tool_calls": calls or None,
        }

    def finish_reason(self, output: JobOutput) -> str | None:
        """Return the reason why the output ended; call it after everything has been read.

        A last call whose arguments are incomplete, for instance because they contain a stop string, is not to be made:
        the reason is ``stop`` then.
        """
        if output.ending is None:
            return None
        is_call = output.ending.reason == "stop" and is_json_object("".join(self._last_arguments))
        return TOOL_CALLS if is_call else output.ending.reason

    def _read(self, text: str, *, ends: bool) -> list[Event]:
        if self._reasoning is None:
            return self._read_calls(text, ends=ends)
        events = self._reasoning.feed(text) + (self._reasoning.finish() if ends else [])
        read: list[Event] = []
        for event in events:
            read += self._read_calls(event.text, ends=False) if isinstance(event, Text) else [event]
        return read + self._read_calls("", ends=ends)

    def _read_calls(self, text: str, *, ends: bool) -> list[Event]:
        if self._tools is None:
            return [Text(text)] if text else []
        return self._tools.feed(text) + (self._tools.finish() if ends else [])

    def _with_arguments(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield ``events`` without calls that have no arguments: the output was cut off before them, or malformed.

        Clients would take such a call for one of a function without parameters.
        """
        for event in events:
            match event:
                case CallStart():
                    self._waiting_start = event
                case CallArguments(_, text):
                    if self._waiting_start is not None:
                        yield replace(self._waiting_start, index=self._calls)
                        self._waiting_start = None
                        self._calls += 1
                        if self._allows_call(self._calls - 1):
                            self._last_arguments.clear()
                    if self._allows_call(self._calls - 1):
                        self._last_arguments.append(text)
                    yield replace(event, index=self._calls - 1)
                case CallEnd():
                    if self._waiting_start is None:
                        yield replace(event, index=self._calls - 1)
                    self._waiting_start = None
                case _:
                    yield event

    def _is_allowed(self, event: Event) -> bool:
        """Return False for calls but the first without ``parallel_tool_calls``, and for reasoning that is left out."""
        if isinstance(event, Reasoning):
            return self._parsing.include_reasoning
        if not isinstance(event, CallStart | CallArguments | CallEnd):
            return True
        return self._allows_call(event.index)

    def _allows_call(self, index: int) -> bool:
        return self._parsing.parallel or index == 0

    def _reordered(self, events: Iterable[Event]) -> Iterator[Event]:
        """Yield ``events``; reasoning that is not to be streamed comes at once, before the event after it."""
        for event in events:
            if isinstance(event, Reasoning) and not self._parsing.stream_reasoning:
                self._thoughts.append(event.text)
                continue
            if self._thoughts:
                yield Reasoning(self._all_thoughts())
            yield event

    def _all_thoughts(self) -> str:
        thoughts, self._thoughts = "".join(self._thoughts), []
        return thoughts


def _reasoning_parser(parsing: ChatParsingOptions) -> OutputParser | None:
    if parsing.reasoning is None or not parsing.separate:
        return None
    return parsing.reasoning.for_functions(parsing.functions if parsing.calls_end_reasoning else {})


def is_json_object(text: str) -> bool:
    """Return True if ``text`` is a JSON object, as the arguments of a complete call are."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def new_call_id() -> str:
    """Return a new call id: ``call_`` and 24 hexadecimal digits."""
    return f"call_{uuid.uuid4().hex[:24]}"


def _call(name: str, arguments: str, id: str | None) -> dict[str, Any]:
    return {"id": id or new_call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
