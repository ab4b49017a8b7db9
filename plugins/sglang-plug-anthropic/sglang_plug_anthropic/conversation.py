"""From messages of content blocks to what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sglang_plug_api.plugin import GivenImage

from .blocks import (
    AnthropicBlock,
    AnthropicImage,
    AnthropicText,
    AnthropicThinking,
    AnthropicToolResult,
    AnthropicToolUse,
    Content,
    text_of,
)

Message = dict[str, Any]
Placed = tuple[str, AnthropicBlock]
"""A block, and its place in the request."""


class Said(Protocol):
    """One message of a request."""

    role: Literal["user", "assistant"]
    content: Content


@dataclass(slots=True)
class Conversation:
    """Messages for a chat template, and the images they have placeholders for, in that order."""

    messages: list[Message] = field(default_factory=list)
    images: list[GivenImage] = field(default_factory=list)

    def add(self, role: str, blocks: Sequence[Placed]) -> None:
        """One turn. What tools answered is said before the rest of a turn, and their images after all answers."""
        if role == "assistant":
            self.messages.append(_of_assistant([block for _, block in blocks]))
            return
        shown: list[Placed] = []
        for place, block in blocks:
            if isinstance(block, AnthropicToolResult):
                said = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
                self.messages.append(said)
                shown += [one for one in _placed(place, block.content) if isinstance(one[1], AnthropicImage)]
        shown += [one for one in blocks if not isinstance(one[1], AnthropicToolResult)]
        if shown:
            self.messages.append({"role": "user", "content": _plain(self._parts(shown))})

    def _parts(self, blocks: Sequence[Placed]) -> list[Message]:
        found: list[Message] = []
        for place, block in blocks:
            if isinstance(block, AnthropicText):
                found.append({"type": "text", "text": block.text})
            elif isinstance(block, AnthropicImage):
                self.images.append(GivenImage(place, block.source.data or block.source.url))
                found.append({"type": "image"})
        return found


def conversation(system: str, messages: Sequence[Said]) -> Conversation:
    """The system prompt, then alternating turns; messages of one role that follow each other are one turn."""
    found = Conversation([{"role": "system", "content": system}] if system else [])
    turns: list[tuple[str, list[Placed]]] = []
    for index, message in enumerate(messages):
        blocks = list(_placed(f"messages.{index}", message.content))
        if turns and turns[-1][0] == message.role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message.role, blocks))
    for role, blocks in turns:
        found.add(role, blocks)
    return found


def _placed(place: str, content: str | Sequence[Any]) -> Iterator[Placed]:
    blocks = [AnthropicText.model_construct(type="text", text=content)] if isinstance(content, str) else content
    for index, block in enumerate(blocks):
        yield f"{place}.content.{index}", block


def _of_assistant(blocks: Sequence[AnthropicBlock]) -> Message:
    message: Message = {"role": "assistant", "content": text_of(blocks)}
    thoughts = [block.thinking for block in blocks if isinstance(block, AnthropicThinking)]
    calls = [block for block in blocks if isinstance(block, AnthropicToolUse)]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(one) for one in calls]
    return message


def _call(block: AnthropicToolUse) -> Message:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _plain(parts: Sequence[Message]) -> str | list[Message]:
    """Parts of text joined by line ends, unless there are images between them."""
    if any(part["type"] == "image" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts)
