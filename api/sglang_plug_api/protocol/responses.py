"""Body of ``/v1/responses``, and its input as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from .base import Integer, Many, Name, RequestBody, SharedFields
from .items import Item, Message, messages_of
from .openai import MAX_MESSAGES, StreamOptions
from .sampling import ConstraintFields, SamplingFields
from .tools import FlatToolChoice, FlatTools

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
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
HARMLESS_INCLUDES = ("reasoning.encrypted_content",)
"""Asks for parts of items that this server never makes."""


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
    Annotated[str, Tag("Text")] | Annotated[Many[Item], Field(max_length=MAX_MESSAGES), Tag("Items")],
    Discriminator(_form),
]
"""Told apart by their form, so that an error names what is wrong with the form that was sent."""


class ResponsesBody(SamplingFields, ConstraintFields, SharedFields):
    """``POST /v1/responses``."""

    model: Name | None = None
    input: Input
    instructions: str | None = None
    max_output_tokens: Integer | None = Field(None, ge=1)
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    store: bool | None = True
    previous_response_id: str | None = None
    metadata: dict[str, str] | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    background: bool | None = False
    tools: FlatTools | None = None
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    include: Many[str] | None = None
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

    def messages(self) -> list[Message]:
        """What ``input`` says, as chat templates want it."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        return messages_of(self.input)
