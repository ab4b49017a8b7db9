"""Conversion of messages with content blocks to the input of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from sglang_plug_api.plugin import RequestImage

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
LocatedBlock = tuple[str, AnthropicBlock]
"""A block and its path in the request."""


class TemplateMessage(Protocol):
    """One message of a request."""

    role: Literal["user", "assistant", "system"]
    content: Content


@dataclass(slots=True)
class Conversation:
    """Messages for a chat template, and the images of their placeholders in order."""

    messages: list[Message] = field(default_factory=list)
    images: list[RequestImage] = field(default_factory=list)

    def add(self, role: str, blocks: Sequence[LocatedBlock]) -> None:
        """Add one turn. Tool results precede the rest of a turn, and their images follow all results."""
        if role == "assistant":
            self.messages.append(_of_assistant([block for _, block in blocks]))
            return
        if role == "system":
            self._add_system(text_of([block for _, block in blocks]))
            return
        user_blocks: list[LocatedBlock] = []
        for path, block in blocks:
            if isinstance(block, AnthropicToolResult):
                result = {"role": "tool", "tool_call_id": block.tool_use_id, "content": text_of(block.content)}
                self.messages.append(result)
                user_blocks += [item for item in _located(path, block.content) if isinstance(item[1], AnthropicImage)]
        user_blocks += [item for item in blocks if not isinstance(item[1], AnthropicToolResult)]
        if user_blocks:
            self.messages.append({"role": "user", "content": _plain(self._parts(user_blocks))})

    def _add_system(self, text: str) -> None:
        """Add instructions: to the system prompt before the first turn, where most templates expect them all."""
        if [message["role"] for message in self.messages] == ["system"]:
            self.messages[0]["content"] += f"\n{text}"
        elif text:
            self.messages.append({"role": "system", "content": text})

    def _parts(self, blocks: Sequence[LocatedBlock]) -> list[Message]:
        parts: list[Message] = []
        for path, block in blocks:
            if isinstance(block, AnthropicText):
                parts.append({"type": "text", "text": block.text})
            elif isinstance(block, AnthropicImage):
                self.images.append(RequestImage(path, block.source.data or block.source.url))
                parts.append({"type": "image"})
        return parts


def conversation(system: str, messages: Sequence[TemplateMessage]) -> Conversation:
    """Convert the system prompt and the turns; consecutive messages of one role form one turn."""
    result = Conversation([{"role": "system", "content": system}] if system else [])
    turns: list[tuple[str, list[LocatedBlock]]] = []
    for index, message in enumerate(messages):
        blocks = list(_located(f"messages.{index}", message.content))
        if turns and turns[-1][0] == message.role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message.role, blocks))
    for role, blocks in turns:
        result.add(role, blocks)
    return result


def _located(path: str, content: str | Sequence[Any]) -> Iterator[LocatedBlock]:
    blocks = [AnthropicText.model_construct(type="text", text=content)] if isinstance(content, str) else content
    for index, block in enumerate(blocks):
        yield f"{path}.content.{index}", block


def _of_assistant(blocks: Sequence[AnthropicBlock]) -> Message:
    message: Message = {"role": "assistant", "content": text_of(blocks)}
    thoughts = [block.thinking for block in blocks if isinstance(block, AnthropicThinking)]
    calls = [block for block in blocks if isinstance(block, AnthropicToolUse)]
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(block: AnthropicToolUse) -> Message:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _plain(parts: Sequence[Message]) -> str | list[Message]:
    """Join text parts by line ends, unless there are images between them."""
    if any(part["type"] == "image" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts)
