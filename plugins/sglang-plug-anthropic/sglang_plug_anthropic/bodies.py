"""Bodies of the Messages API, and the conversation they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sglang_plug_api.plugin import GivenImage, Integer, Name, Number, RequestBody

MAX_MESSAGES = 16384
MOST_SHOWN = 40
"""Characters of a caller's value that an error repeats."""
UNSUPPORTED = ("tools", "mcp_servers", "container", "context_management", "output_config", "output_format")
"""Fields that would change the answer if they were honoured."""
SWITCHED_OFF = {"thinking": ("disabled",), "tool_choice": ("auto", "none")}
"""Fields whose ``type`` may only say that nothing is wanted."""

Conversation = list[dict[str, Any]]


class AnthropicSource(RequestBody):
    """Where an image comes from. What it is follows from the file, not from ``media_type``."""

    type: Literal["base64", "url"]
    media_type: Name | None = None
    data: str | None = None
    url: str | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> AnthropicSource:
        name = "data" if self.type == "base64" else "url"
        if getattr(self, name) is None:
            raise ValueError(f"a source of type {self.type!r} has a field {name!r}")
        return self


class AnthropicBlock(RequestBody):
    """A content block: text or an image. ``cache_control`` is accepted, prefixes are cached anyway."""

    type: str
    text: str | None = None
    source: AnthropicSource | None = None

    @model_validator(mode="after")
    def _is_text_or_image(self) -> AnthropicBlock:
        if self.type not in ("text", "image"):
            kind = self.type[:MOST_SHOWN]
            raise ValueError(f"content blocks of type {kind!r} are not supported; text and images are read")
        if self.type == "text" and not self.text:
            raise ValueError("text content blocks must be non-empty")
        if self.type == "image" and self.source is None:
            raise ValueError("an image has a source")
        return self

    def shown(self) -> dict[str, str]:
        """As chat templates want it."""
        return {"type": "text", "text": self.text or ""} if self.type == "text" else {"type": "image"}


Content = str | list[AnthropicBlock]


class AnthropicMessage(RequestBody):
    """One turn, or a part of one: turns of one role that follow each other are read as one."""

    role: Literal["user", "assistant"]
    content: Content


class AnthropicMetadata(RequestBody):
    """``metadata``; kept out of everything."""

    user_id: Name | None = None


class AnthropicCountBody(RequestBody):
    """``POST /v1/messages/count_tokens``."""

    model: Name
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Content | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None

    @field_validator("messages")
    @classmethod
    def _are_not_empty(cls, messages: list[AnthropicMessage]) -> list[AnthropicMessage]:
        for index, message in enumerate(messages):
            if message.role == "assistant":
                refuse_images(message.content, f"message {index} is the assistant's")
            is_prefill = index == len(messages) - 1 and message.role == "assistant"
            if not message.content and not is_prefill:
                raise ValueError(f"message {index} is empty; only a final assistant message may be")
        if messages[-1].role == "assistant" and (text := text_of(messages[-1].content)) != text.rstrip():
            raise ValueError("a final assistant message must not end with whitespace, or it cannot be continued")
        return messages

    @field_validator("system")
    @classmethod
    def _is_text(cls, system: Content | None) -> Content | None:
        refuse_images(system, "this is the system prompt")
        return system

    @model_validator(mode="after")
    def _refuse_unsupported(self) -> AnthropicCountBody:
        given = {**(self.model_extra or {}), "tools": self.tools}
        for name in UNSUPPORTED:
            if given.get(name) not in (None, False, [], {}, ""):
                raise ValueError(f"{name!r} is not supported by this server; leave it out")
        for name, allowed in SWITCHED_OFF.items():
            kind = (getattr(self, name) or {}).get("type", allowed[0])
            if kind not in allowed:
                raise ValueError(f"{name!r} of type {str(kind)[:MOST_SHOWN]!r} is not supported by this server")
        return self

    def conversation(self) -> Conversation:
        """What the chat template reads: the system prompt, then alternating turns."""
        turns: list[tuple[str, list[dict[str, str]]]] = []
        for message in self.messages:
            content = message.content
            parts = (
                [{"type": "text", "text": content}] if isinstance(content, str) else [one.shown() for one in content]
            )
            if turns and turns[-1][0] == message.role:
                turns[-1][1].extend(parts)
            else:
                turns.append((message.role, parts))
        said = [{"role": role, "content": _plain(parts)} for role, parts in turns]
        return [{"role": "system", "content": text_of(self.system)}, *said] if self.system else said

    def images(self) -> list[GivenImage]:
        """The images of the conversation, in order."""
        return [
            GivenImage(f"messages.{index}.content.{place}", block.source.data or block.source.url)
            for index, message in enumerate(self.messages)
            for place, block in enumerate(message.content if isinstance(message.content, list) else ())
            if block.source is not None
        ]

    @property
    def continues(self) -> bool:
        """True if the answer is to continue a final assistant message."""
        return self.messages[-1].role == "assistant" and bool(self.messages[-1].content)


class AnthropicBody(AnthropicCountBody):
    """``POST /v1/messages``."""

    max_tokens: Annotated[Integer, Field(ge=0)]
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=0)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    metadata: AnthropicMetadata | None = None

    def sampling(self) -> dict[str, Any]:
        """What was given, in native names."""
        given = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k or None,
            "stop": self.stop_sequences or None,
        }
        return {name: value for name, value in given.items() if value is not None}


def refuse_images(content: str | Sequence[AnthropicBlock] | None, where: str) -> None:
    """Raises ``ValueError`` if there is one."""
    if isinstance(content, list) and any(block.type == "image" for block in content):
        raise ValueError(f"images belong to messages of the user; {where}")


def _plain(parts: Sequence[dict[str, str]]) -> str | list[dict[str, str]]:
    """Parts of text joined by line ends, unless there are images between them."""
    if any(part["type"] == "image" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts)


def text_of(content: str | Sequence[AnthropicBlock] | None) -> str:
    """Blocks of text joined by line ends."""
    return content or "" if isinstance(content, str | None) else "\n".join(block.text or "" for block in content)
