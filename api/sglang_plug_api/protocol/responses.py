"""Body of ``/v1/responses``, and the conversion of its input to messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from sglang_plug_api.answers.errors import WrongField

from .base import Integer, Many, Name, RequestBody, SharedFields
from .items import Item, Message, messages_of
from .misplaced import RESPONSES, Remedies
from .openai import MAX_MESSAGES, MAX_TOP_LOGPROBS, Effort, StreamOptions
from .sampling import ConstraintFields, SamplingFields, StructuredOutputs
from .tools import FlatToolChoice, FlatTools

MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
LOGPROBS = "message.output_text.logprobs"
HARMLESS_INCLUDES = (
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""Requests for parts of items that this server never generates, or shows anyway."""


class TextFormat(BaseModel):
    """``text.format``: ``text``, ``json_object``, or ``json_schema`` with a name and a schema."""

    model_config = ConfigDict(extra="allow")

    type: str = "text"

    @model_validator(mode="after")
    def _check_type(self) -> TextFormat:
        if self.model_extra and "type" not in self.model_fields_set:
            raise WrongField("type", "a format with other fields needs a type: text, json_object or json_schema")
        return self

    def as_response_format(self) -> dict[str, Any]:
        """Return the format as chat completions write it, where the schema is one level deeper."""
        fields = self.model_dump()
        return {"type": self.type, "json_schema": fields} if self.type == "json_schema" else fields


class TextOptions(RequestBody):
    """``text``."""

    misplaced: ClassVar[Remedies] = {"verbosity": RESPONSES["verbosity"]}

    format: TextFormat | None = None


class ReasoningOptions(RequestBody):
    """``reasoning``. What a model thinks is shown as it is: of summaries only ``auto`` asks for none in particular."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


def _form(value: Any) -> str:
    return "Text" if isinstance(value, str) else "Items"


Input = Annotated[
    Annotated[str, Tag("Text")] | Annotated[Many[Item], Field(max_length=MAX_MESSAGES), Tag("Items")],
    Discriminator(_form),
]
"""Input of either form; the discriminator makes errors name the problem of the form that was sent."""


class ResponsesBody(SamplingFields, ConstraintFields, SharedFields):
    """``POST /v1/responses``."""

    misplaced: ClassVar[Remedies] = RESPONSES

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
    structured_outputs: StructuredOutputs | None = None
    include_stop_str_in_output: bool | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    background: bool | None = False
    tools: FlatTools | None = None
    tool_choice: FlatToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include: Many[str] | None = None
    top_logprobs: Integer | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

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
    def _check_together(self) -> ResponsesBody:
        if self.stream_options is not None and not self.stream:
            raise WrongField("stream_options", "stream_options is only allowed when stream is true")
        for name in self.include or ():
            if name not in (LOGPROBS, *HARMLESS_INCLUDES):
                raise WrongField("include", f"include {name[:80]!r} is not supported by this server")
        return self

    @property
    def includes_logprobs(self) -> bool:
        """True if texts come with the log-probabilities of their tokens."""
        return bool(self.top_logprobs) or LOGPROBS in (self.include or ())

    def messages(self) -> list[Message]:
        """Return ``input`` as messages for chat templates."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}] if self.input else []
        return messages_of(self.input)
