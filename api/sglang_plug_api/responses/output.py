"""Output items of a response while they grow, and the events that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_plug import CallArguments, CallEnd, CallStart, Reasoning, Text, TokenLogprob
from sglang_plug.contracts.text.parsers import Event
from sglang_plug_api.text.chat_events import is_json_object, new_call_id
from sglang_plug_api.text.job import new_id
from sglang_plug_api.text.logprobs import logprob_list

from .token_spans import TokenSpans

Fields = dict[str, Any]
OutputEvent = tuple[str, Fields]
"""An event: its name, and its fields besides type and sequence number."""
LogprobEntry = Callable[[TokenLogprob], Fields]
"""Returns the log-probabilities of one token as clients get them."""


class Item(Protocol):
    """One item: ``open`` is called once, ``append`` for each text, ``close`` once."""

    id: str
    status: str

    def open(self) -> Iterator[OutputEvent]:
        """Yield the events that announce the item."""

    def append(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[OutputEvent]:
        """Add text, with the log-probabilities of its tokens if they were requested, and yield its events."""

    def close(self) -> Iterator[OutputEvent]:
        """Yield the events with the whole text."""

    def as_dict(self) -> Fields:
        """Return the item so far."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """The differences between messages and reasoning."""

    prefix: str
    """Prefix of item ids."""
    event: str
    """Prefix of event names."""
    item: Mapping[str, Any]
    part: Mapping[str, Any]
    has_logprobs: bool
    """True if parts and events have a field for log-probabilities, even if none were requested."""


MESSAGE = TextKind(
    prefix="msg",
    event="response.output_text",
    item={"type": "message", "role": "assistant"},
    part={"type": "output_text", "annotations": []},
    has_logprobs=True,
)
REASONING = TextKind(
    prefix="rs",
    event="response.reasoning_text",
    item={"type": "reasoning", "summary": []},
    part={"type": "reasoning_text"},
    has_logprobs=False,
)


class TextItem:
    """A message or reasoning item, with one part.

    Long lists of log-probabilities are made while they are encoded.
    """

    def __init__(self, kind: TextKind, logprob_entry: LogprobEntry | None = None) -> None:
        self.id, self.status = f"{kind.prefix}_{new_id()}", "in_progress"
        self.kind = kind
        self._texts: list[str] = []
        self._logprob_entry = logprob_entry
        self._logprobs: list[TokenLogprob] = []

    def open(self) -> Iterator[OutputEvent]:
        """Yield the event that announces the part."""
        yield "response.content_part.added", {"content_index": 0, "part": self._part("")}

    def append(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[OutputEvent]:
        """Add text, with the log-probabilities of its tokens if they were requested, and yield its event."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield f"{self.kind.event}.delta", {"content_index": 0, "delta": text, **self._logprob_fields(logprobs)}

    def end(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Add the log-probabilities of tokens without text, such as the end token."""
        self._logprobs += logprobs

    def close(self) -> Iterator[OutputEvent]:
        """Yield the events with the whole text."""
        text = "".join(self._texts)
        yield f"{self.kind.event}.done", {"content_index": 0, "text": text, **self._logprob_fields(self._logprobs)}
        yield "response.content_part.done", {"content_index": 0, "part": self._part(text)}

    def as_dict(self) -> Fields:
        """Return the item so far."""
        content = [self._part("".join(self._texts))]
        return {"id": self.id, **self.kind.item, "status": self.status, "content": content}

    def _part(self, text: str) -> Fields:
        return {**self.kind.part, **self._logprob_fields(self._logprobs), "text": text}

    def _logprob_fields(self, logprobs: Sequence[TokenLogprob]) -> Fields:
        if not self.kind.has_logprobs:
            return {}
        entry = self._logprob_entry
        return {"logprobs": [] if entry is None else logprob_list(list(logprobs), entry)}


class CallItem:
    """A function call item."""

    def __init__(self, name: str, call_id: str | None) -> None:
        self.id = f"fc_{new_id()}"
        self.status = "in_progress"
        self._name = name
        self._call_id = call_id or new_call_id()
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        """The JSON text of the arguments so far."""
        return "".join(self._arguments)

    @property
    def is_whole(self) -> bool:
        """True if the arguments are a JSON object, neither truncated nor malformed."""
        return is_json_object(self.arguments)

    def open(self) -> Iterator[OutputEvent]:
        """Yield nothing: the item itself announces the call."""
        yield from ()

    def append(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[OutputEvent]:
        """Add text of the arguments and yield its event; calls have no log-probabilities."""
        self._arguments.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def close(self) -> Iterator[OutputEvent]:
        """Yield the event with the whole arguments."""
        yield "response.function_call_arguments.done", {"name": self._name, "arguments": self.arguments}

    def as_dict(self) -> Fields:
        """Return the item so far."""
        return {
            "id": self.id,
            "type": "function_call",
            "status": self.status,
            "call_id": self._call_id,
            "name": self._name,
            "arguments": self.arguments,
        }


@dataclass(slots=True)
class Output:
    """All output items in order; the last one may still be open."""

    logprob_entry: LogprobEntry | None = None
    """``None`` if no log-probabilities were requested."""
    items: list[Item] = field(default_factory=list)
    _open_item: Item | None = None
    _token_spans: TokenSpans[TokenLogprob] = field(default_factory=TokenSpans)

    def add_logprobs(self, tokens: Iterable[tuple[bytes, TokenLogprob]]) -> None:
        """Add the bytes and log-probabilities of the tokens whose events are added next."""
        self._token_spans.add(tokens)

    def add(self, event: Event) -> list[OutputEvent]:
        """Add an event of a parser and return the events of the response."""
        match event:
            case Text(text):
                events = self._write(MESSAGE, text)
            case Reasoning(text):
                events = self._write(REASONING, text)
            case CallStart(_, name, id):
                events = self._begin(CallItem(name, id))
            case CallArguments(_, text) if isinstance(self._open_item, CallItem):
                events = self._with_item(self._open_item.append(text, self._token_spans.take(text)))
            case CallEnd() if isinstance(self._open_item, CallItem):
                events = self._end(whole=True)
            case _:
                return []
        return list(events)

    def finish(self, *, whole: bool) -> list[OutputEvent]:
        """End the output; ``whole`` if it was not truncated. An output without any item is an empty message."""
        events = [] if self.items else list(self._begin(TextItem(MESSAGE, self.logprob_entry)))
        if isinstance(self._open_item, TextItem):
            self._open_item.end(self._token_spans.take_all())
        return events + list(self._end(whole=whole))

    def as_list(self) -> list[Fields]:
        """Return the items so far."""
        return [item.as_dict() for item in self.items]

    def _write(self, kind: TextKind, text: str) -> Iterator[OutputEvent]:
        if not text:
            return
        item = self._open_item
        if not isinstance(item, TextItem) or item.kind is not kind:
            item = TextItem(kind, self.logprob_entry)
            yield from self._begin(item)
        yield from self._with_item(item.append(text, self._token_spans.take(text)))

    def _begin(self, item: Item) -> Iterator[OutputEvent]:
        yield from self._end(whole=True)
        self.items.append(item)
        self._open_item = item
        announced = item.as_dict()
        if "content" in announced:
            announced["content"] = []
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": announced}
        yield from self._with_item(item.open())

    def _end(self, *, whole: bool) -> Iterator[OutputEvent]:
        item, self._open_item = self._open_item, None
        if item is None:
            return
        if isinstance(item, CallItem):
            whole = whole and item.is_whole
        item.status = "completed" if whole else "incomplete"
        yield from self._with_item(item.close())
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item.as_dict()}

    def _with_item(self, events: Iterator[OutputEvent]) -> Iterator[OutputEvent]:
        """Yield ``events`` with the id and index of the last item."""
        item = self.items[-1]
        for name, fields in events:
            yield name, {"item_id": item.id, "output_index": len(self.items) - 1, **fields}
