"""Body of ``/v1/responses``, and its input as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from .base import Integer, Name, Number, RequestBody, SharedFields, TokenId
from .openai import MAX_MESSAGES, StreamOptions

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
TEXT_PARTS = ("input_text", "output_text", "text")
OTHER_NAMES: Mapping[str, str] = {
    "messages": "use input",
    "prompt": "use input and instructions",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "conversation": "use previous_response_id",
    "n": "one response is made for each request",
}
"""Fields of other routes or of features that are not here: ignoring one would change the answer silently."""
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop",
    "stop_token_ids", "ignore_eos", "seed",
)  # fmt: skip
HARMLESS_INCLUDES = ("reasoning.encrypted_content",)
"""Asks for parts of items that this server never makes."""


class InputItem(RequestBody):
    """One item of ``input``: a message. Everything else is refused by its type."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[dict[str, Any]]

    @model_validator(mode="before")
    @classmethod
    def _is_a_message(cls, value: Any) -> Any:
        kind = value.get("type", "message") if isinstance(value, dict) else "message"
        if kind not in ("message", None):
            raise ValueError(f"items of type {str(kind)[:40]!r} are not supported by this server; send messages")
        return value

    @field_validator("content")
    @classmethod
    def _is_text(cls, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        for part in content if isinstance(content, list) else ():
            _text_of(part)
        return content

    def text(self) -> str:
        """The content's text."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(_text_of(part) for part in self.content)

    def plain(self) -> dict[str, Any]:
        """As chat templates want it; what developers say is the system's word."""
        return {"role": "system" if self.role == "developer" else self.role, "content": self.text()}


def _text_of(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    text = part.get("refusal") if kind == "refusal" else part.get("text") if kind in TEXT_PARTS else None
    if not isinstance(text, str):
        raise ValueError(f"a content part has type {str(kind)[:40]!r}; this model takes text parts only")
    return text


class TextFormat(BaseModel):
    """``text.format``: ``text``, ``json_object``, or ``json_schema`` with a name and a schema."""

    model_config = ConfigDict(extra="allow")

    type: str = "text"

    def as_response_format(self) -> dict[str, Any]:
        """As chat completions write it, where the schema lies one level deeper."""
        given = self.model_dump()
        return {"type": self.type, "json_schema": given} if self.type == "json_schema" else given


class TextOptions(RequestBody):
    """``text``."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


def _form(value: Any) -> str:
    return "Text" if isinstance(value, str) else "Items"


Input = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[InputItem], Field(max_length=MAX_MESSAGES), Tag("Items")],
    Discriminator(_form),
]
"""Told apart by their form, so that an error names what is wrong with the form that was sent."""


class ResponsesBody(SharedFields):
    """``POST /v1/responses``."""

    model: Name | None = None
    input: Input
    instructions: str | None = None
    max_output_tokens: Integer | None = Field(None, ge=1)
    temperature: Number | None = Field(None, ge=0)
    top_p: Number | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    frequency_penalty: Number | None = None
    presence_penalty: Number | None = None
    repetition_penalty: Number | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    seed: Integer | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    store: bool | None = True
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    background: bool | None = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Integer | None = None
    user: str | None = None

    @field_validator("metadata")
    @classmethod
    def _bounded(cls, metadata: dict[str, str] | None) -> dict[str, str] | None:
        if metadata and len(metadata) > MAX_METADATA:
            raise ValueError(f"at most {MAX_METADATA} keys are allowed, got {len(metadata)}")
        for key, value in (metadata or {}).items():
            if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
                raise ValueError(
                    f"keys have at most {MAX_METADATA_KEY} characters and values at most {MAX_METADATA_VALUE}"
                )
        return metadata

    @model_validator(mode="after")
    def _nothing_from_elsewhere(self) -> ResponsesBody:
        for name, remedy in OTHER_NAMES.items():
            if (self.model_extra or {}).get(name) not in (None, False):
                raise ValueError(f"{name!r} would have no effect here: {remedy}")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is only allowed when stream is true")
        for one in self.include or ():
            if one not in HARMLESS_INCLUDES:
                raise ValueError(f"include {one[:80]!r} is not supported by this server")
        return self

    def messages(self) -> list[dict[str, Any]]:
        """What ``input`` says, as chat templates want it."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        return [item.plain() for item in self.input]

    def sampling(self) -> dict[str, Any]:
        """What was given, in native names."""
        given = {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}
        if self.max_output_tokens is not None:
            given["max_new_tokens"] = self.max_output_tokens
        return given
