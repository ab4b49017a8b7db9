"""Content blocks of a streamed answer, and the events that show them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from sglang_plug import CallArguments, CallEnd, CallStart, Reasoning, Text
from sglang_plug_api.plugin import NamedEvent, new_id

Fields = dict[str, Any]
ParsedEvent = Text | Reasoning | CallStart | CallArguments | CallEnd


class Block(Protocol):
    """A content block."""

    def opening(self) -> Fields:
        """Return the block before any content."""

    def delta(self, text: str) -> Fields:
        """Append content and return its delta event."""

    def ending(self) -> Iterator[Fields]:
        """Return the deltas at the end of the block."""

    def show(self) -> Fields | None:
        """Return the current block; ``None`` if it is unusable."""


@dataclass(slots=True)
class TextBlock:
    """A text block of the answer."""

    text: str = ""

    def opening(self) -> Fields:
        """Return the block before any content."""
        return {"type": "text", "text": ""}

    def delta(self, text: str) -> Fields:
        """Append content and return its delta event."""
        self.text += text
        return {"type": "text_delta", "text": text}

    def ending(self) -> Iterator[Fields]:
        """Return no deltas."""
        yield from ()

    def show(self) -> Fields:
        """Return the current block."""
        return {"type": "text", "text": self.text}


@dataclass(slots=True)
class ThinkingBlock:
    """A thinking block. Its signature proves nothing: clients require one, and may send it back."""

    signature: str
    thinking: str = ""

    def opening(self) -> Fields:
        """Return the block before any content."""
        return {"type": "thinking", "thinking": "", "signature": ""}

    def delta(self, text: str) -> Fields:
        """Append content and return its delta event."""
        self.thinking += text
        return {"type": "thinking_delta", "thinking": text}

    def ending(self) -> Iterator[Fields]:
        """Return the signature delta."""
        yield {"type": "signature_delta", "signature": self.signature}

    def show(self) -> Fields:
        """Return the current block."""
        return {"type": "thinking", "thinking": self.thinking, "signature": self.signature}


@dataclass(slots=True)
class CallBlock:
    """A tool call block."""

    name: str
    id: str = field(default_factory=lambda: f"toolu_{new_id()[:24]}")
    arguments: str = ""

    def opening(self) -> Fields:
        """Return the block before any content."""
        return {"type": "tool_use", "id": self.id, "name": self.name, "input": {}}

    def delta(self, text: str) -> Fields:
        """Append content and return its delta event."""
        self.arguments += text
        return {"type": "input_json_delta", "partial_json": text}

    def ending(self) -> Iterator[Fields]:
        """Return no deltas."""
        yield from ()

    def show(self) -> Fields | None:
        """Return the call; ``None`` if its arguments are no object, truncated or malformed."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return {**self.opening(), "input": arguments} if isinstance(arguments, dict) else None


class Content:
    """All blocks in order; the last one may be open.

    Args:
        signature: of what the model thought.
        shows_thinking: that is a part of the content.
    """

    def __init__(self, signature: str, *, shows_thinking: bool) -> None:
        self._signature, self._shows_thinking = signature, shows_thinking
        self._blocks: list[Block] = []
        self._is_growing = False

    @property
    def has_call(self) -> bool:
        """Return True if there is a valid tool call."""
        return any(isinstance(block, CallBlock) and block.show() is not None for block in self._blocks)

    def add(self, events: Iterable[ParsedEvent]) -> Iterator[NamedEvent]:
        """Add a parsed event and return the stream events."""
        for event in events:
            match event:
                case Text(text) if text:
                    yield from self._write(TextBlock, text)
                case Reasoning(text) if text and self._shows_thinking:
                    yield from self._write(ThinkingBlock, text)
                case CallStart(_, name, id):
                    yield from self._begin(CallBlock(name, id) if id else CallBlock(name))
                case CallArguments(_, text) if text and self._is_growing:
                    yield self._more(text)
                case CallEnd():
                    yield from self.end()

    def end(self) -> Iterator[NamedEvent]:
        """Close the open block."""
        if not self._is_growing:
            return
        self._is_growing = False
        for delta in self._blocks[-1].ending():
            yield self._event("content_block_delta", delta=delta)
        yield self._event("content_block_stop")

    def show(self) -> list[Fields]:
        """Return the blocks without invalid calls."""
        return [fields for block in self._blocks if (fields := block.show()) is not None]

    def _write(self, kind: type[TextBlock | ThinkingBlock], text: str) -> Iterator[NamedEvent]:
        if not self._is_growing or not isinstance(self._blocks[-1], kind):
            yield from self._begin(TextBlock() if kind is TextBlock else ThinkingBlock(self._signature))
        yield self._more(text)

    def _begin(self, block: Block) -> Iterator[NamedEvent]:
        yield from self.end()
        self._blocks.append(block)
        self._is_growing = True
        yield self._event("content_block_start", content_block=block.opening())
        if len(self._blocks) == 1:
            yield NamedEvent("ping", {"type": "ping"})

    def _more(self, text: str) -> NamedEvent:
        return self._event("content_block_delta", delta=self._blocks[-1].delta(text))

    def _event(self, kind: str, **fields: Any) -> NamedEvent:
        return NamedEvent(kind, {"type": kind, "index": len(self._blocks) - 1, **fields})
