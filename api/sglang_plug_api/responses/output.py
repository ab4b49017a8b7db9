"""The items of a response while they grow, and the events that show it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_plug import CallArguments, CallEnd, CallStart, Reasoning, Text
from sglang_plug.parsers import Event
from sglang_plug_api.chat_events import new_call_id
from sglang_plug_api.job import new_id

from .trail import Trail

Fields = dict[str, Any]
Shown = tuple[str, Fields]
"""An event: its name, and what it says besides type and number."""


class Item(Protocol):
    """One item: ``open`` once, ``more`` as often as there is text, ``close`` once."""

    id: str
    status: str

    def open(self) -> Iterator[Shown]:
        """Events that announce it."""

    def more(self, text: str, logprobs: Sequence[Fields] = ()) -> Iterator[Shown]:
        """Events of more text, with the log-probabilities of its tokens if they are wanted."""

    def close(self) -> Iterator[Shown]:
        """Events that tell all of its text."""

    def show(self) -> Fields:
        """The item so far."""


@dataclass(frozen=True, slots=True)
class TextKind:
    """What tells a message and reasoning apart."""

    prefix: str
    """Of ids."""
    event: str
    """What names of events begin with."""
    item: Mapping[str, Any]
    part: Mapping[str, Any]
    has_logprobs: bool
    """Parts and events say the log-probabilities of their tokens, be it that nobody asked for them."""


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
    """A message or reasoning, with one part."""

    def __init__(self, kind: TextKind) -> None:
        self.id, self.status = f"{kind.prefix}_{new_id()}", "in_progress"
        self.kind = kind
        self._texts: list[str] = []
        self._logprobs: list[Fields] = []

    def open(self) -> Iterator[Shown]:
        """Events that announce it."""
        yield "response.content_part.added", {"content_index": 0, "part": self._part("")}

    def more(self, text: str, logprobs: Sequence[Fields] = ()) -> Iterator[Shown]:
        """Events of more text, with the log-probabilities of its tokens if they are wanted."""
        self._texts.append(text)
        self._logprobs += logprobs
        yield f"{self.kind.event}.delta", {"content_index": 0, "delta": text, **self._shown(logprobs)}

    def end(self, logprobs: Sequence[Fields]) -> None:
        """Take the log-probabilities of tokens that brought no text, such as the one that ends it."""
        self._logprobs += logprobs

    def close(self) -> Iterator[Shown]:
        """Events that tell all of its text."""
        text = "".join(self._texts)
        yield f"{self.kind.event}.done", {"content_index": 0, "text": text, **self._shown(self._logprobs)}
        yield "response.content_part.done", {"content_index": 0, "part": self._part(text)}

    def show(self) -> Fields:
        """The item so far."""
        content = [self._part("".join(self._texts))]
        return {"id": self.id, **self.kind.item, "status": self.status, "content": content}

    def _part(self, text: str) -> Fields:
        return {**self.kind.part, **self._shown(self._logprobs), "text": text}

    def _shown(self, logprobs: Sequence[Fields]) -> Fields:
        return {"logprobs": list(logprobs)} if self.kind.has_logprobs else {}


class CallItem:
    """A call of a function."""

    def __init__(self, name: str, call_id: str | None) -> None:
        self.id, self.status = f"fc_{new_id()}", "in_progress"
        self._name, self._call_id = name, call_id or new_call_id()
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        """JSON text, as far as it has come."""
        return "".join(self._arguments)

    @property
    def is_whole(self) -> bool:
        """True if the arguments are an object, neither broken off nor malformed."""
        try:
            return isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            return False

    def open(self) -> Iterator[Shown]:
        """Nothing: the item says all."""
        yield from ()

    def more(self, text: str, logprobs: Sequence[Fields] = ()) -> Iterator[Shown]:
        """Events of more text; calls have no log-probabilities."""
        self._arguments.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def close(self) -> Iterator[Shown]:
        """Events that tell all of its text."""
        yield "response.function_call_arguments.done", {"name": self._name, "arguments": self.arguments}

    def show(self) -> Fields:
        """The item so far."""
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
    """All items in their order; the last may be growing."""

    items: list[Item] = field(default_factory=list)
    _growing: Item | None = None
    _trail: Trail = field(default_factory=Trail)

    def note(self, logprobs: Iterable[Fields]) -> None:
        """Log-probabilities of the tokens of what is added next."""
        self._trail.add(logprobs)

    def add(self, event: Event) -> list[Shown]:
        """Take what a parser found."""
        match event:
            case Text(text):
                shown = self._write(MESSAGE, text)
            case Reasoning(text):
                shown = self._write(REASONING, text)
            case CallStart(_, name, id):
                shown = self._begin(CallItem(name, id))
            case CallArguments(_, text) if isinstance(self._growing, CallItem):
                shown = self._placed(self._growing.more(text, self._trail.take(text)))
            case CallEnd() if isinstance(self._growing, CallItem):
                shown = self._end(whole=True)
            case _:
                return []
        return list(shown)

    def finish(self, *, whole: bool) -> list[Shown]:
        """Nothing more will come; ``whole``: the model had said all. An output without any item is an empty message."""
        found = [] if self.items else list(self._begin(TextItem(MESSAGE)))
        if isinstance(self._growing, TextItem):
            self._growing.end(self._trail.rest())
        return found + list(self._end(whole=whole))

    def show(self) -> list[Fields]:
        """The items so far."""
        return [item.show() for item in self.items]

    def _write(self, kind: TextKind, text: str) -> Iterator[Shown]:
        if not text:
            return
        item = self._growing
        if not isinstance(item, TextItem) or item.kind is not kind:
            item = TextItem(kind)
            yield from self._begin(item)
        yield from self._placed(item.more(text, self._trail.take(text)))

    def _begin(self, item: Item) -> Iterator[Shown]:
        yield from self._end(whole=True)
        self.items.append(item)
        self._growing = item
        shown = item.show()
        if "content" in shown:
            shown["content"] = []
        yield "response.output_item.added", {"output_index": len(self.items) - 1, "item": shown}
        yield from self._placed(item.open())

    def _end(self, *, whole: bool) -> Iterator[Shown]:
        item, self._growing = self._growing, None
        if item is None:
            return
        if isinstance(item, CallItem):
            whole = whole and item.is_whole
        item.status = "completed" if whole else "incomplete"
        yield from self._placed(item.close())
        yield "response.output_item.done", {"output_index": len(self.items) - 1, "item": item.show()}

    def _placed(self, events: Iterator[Shown]) -> Iterator[Shown]:
        """``events`` of the last item."""
        item = self.items[-1]
        for name, fields in events:
            yield name, {"item_id": item.id, "output_index": len(self.items) - 1, **fields}
