"""Content blocks of requests: text, images, tool calls and their results, and thinking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from sglang_plug_api.plugin import Name, RequestBody

MAX_SHOWN = 40
"""Maximum characters of a caller's value that an error repeats."""


class AnthropicSource(RequestBody):
    """The source of an image. Its format follows from the file, not from ``media_type``."""

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


class AnthropicText(RequestBody):
    """A text block."""

    type: Literal["text"]
    text: str

    @model_validator(mode="after")
    def _is_not_empty(self) -> AnthropicText:
        if not self.text:
            raise ValueError("text content blocks must be non-empty")
        return self


class AnthropicImage(RequestBody):
    """An image block."""

    type: Literal["image"]
    source: AnthropicSource


class AnthropicToolUse(RequestBody):
    """An earlier tool call of the model."""

    type: Literal["tool_use"]
    id: Name
    name: Name
    input: dict[str, Any]


class AnthropicThinking(RequestBody):
    """Earlier thinking of the model; signatures are ignored."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class AnthropicRedactedThinking(RequestBody):
    """Encrypted thinking of another server's model, which cannot be read here."""

    type: Literal["redacted_thinking"]
    data: str


def _known(value: Any, kinds: Sequence[str]) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind not in kinds:
        raise ValueError(
            f"content blocks of type {kind[:MAX_SHOWN]!r} are not supported here; known: {', '.join(kinds)}"
        )
    return value


def _is_known(value: Any) -> Any:
    return _known(value, ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking"))


def _is_known_in_results(value: Any) -> Any:
    return _known(value, ("text", "image"))


AnthropicResultPart = Annotated[
    Annotated[AnthropicText | AnthropicImage, Discriminator("type")], BeforeValidator(_is_known_in_results)
]


class AnthropicToolResult(RequestBody):
    """The result of a tool call. ``is_error`` is shown by the text alone."""

    type: Literal["tool_result"]
    tool_use_id: Name
    content: str | list[AnthropicResultPart] = Field(default="", union_mode="left_to_right")
    is_error: bool | None = None


AnthropicBlock = Annotated[
    Annotated[
        AnthropicText
        | AnthropicImage
        | AnthropicToolUse
        | AnthropicToolResult
        | AnthropicThinking
        | AnthropicRedactedThinking,
        Discriminator("type"),
    ],
    BeforeValidator(_is_known),
]
Content = str | list[AnthropicBlock]
ALLOWED_BLOCKS: Mapping[str, tuple[type[RequestBody], ...]] = {
    "user": (AnthropicText, AnthropicImage, AnthropicToolResult),
    "assistant": (AnthropicText, AnthropicToolUse, AnthropicThinking, AnthropicRedactedThinking),
    "system": (AnthropicText,),
}
"""Role of a message -> the content blocks that it may have."""


def text_of(content: str | Sequence[Any]) -> str:
    """Return the text of blocks, joined by line ends."""
    if isinstance(content, str):
        return content
    return "\n".join(block.text for block in content if isinstance(block, AnthropicText))
