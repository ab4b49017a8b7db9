"""Request bodies of the Messages API, and their conversion to conversations."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from sglang_plug import Constraint
from sglang_plug_api.plugin import ChatRequest, Effort, Integer, Name, Number, ProcessorFieldsBody, RequestBody

from .blocks import ALLOWED_BLOCKS, AnthropicText, AnthropicToolResult, AnthropicToolUse, Content, text_of
from .conversation import conversation
from .tools import AnthropicTool, AnthropicToolChoice

MAX_MESSAGES = 16384
MAX_TOOLS = 1024
UNSUPPORTED = ("mcp_servers", "container", "context_management", "chat_template_kwargs")
"""Unsupported fields that would change the answer."""


class AnthropicMessage(RequestBody):
    """A turn or a part of one: consecutive messages of one role form one turn."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @model_validator(mode="after")
    def _has_what_its_role_says(self) -> AnthropicMessage:
        allowed = ALLOWED_BLOCKS[self.role]
        for block in self.content if isinstance(self.content, list) else ():
            if not isinstance(block, allowed):
                raise ValueError(f"a message of the {self.role} has no content blocks of type {block.type!r}")
        return self


class AnthropicMetadata(RequestBody):
    """The field ``metadata``, which is ignored."""

    user_id: Name | None = None


class AnthropicThinkingConfig(RequestBody):
    """The field ``thinking``: whether thinking is shown. ``budget_tokens`` has no effect."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[Integer, Field(ge=1)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnthropicFormat(RequestBody):
    """Output format of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class AnthropicOutputConfig(RequestBody):
    """The field ``output_config``."""

    effort: Effort | None = None
    format: AnthropicFormat | None = None


class AnthropicCountBody(RequestBody):
    """Body of ``POST /v1/messages/count_tokens``."""

    model: Name
    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[AnthropicText] | None = None
    tools: Annotated[list[AnthropicTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinkingConfig | None = None
    output_config: AnthropicOutputConfig | None = None
    output_format: AnthropicFormat | None = None

    @field_validator("messages")
    @classmethod
    def _are_not_empty(cls, messages: list[AnthropicMessage]) -> list[AnthropicMessage]:
        if all(message.role == "system" for message in messages):
            raise ValueError("there is no message of the user")
        for index, message in enumerate(messages):
            is_prefill = index == len(messages) - 1 and message.role == "assistant"
            if not message.content and not is_prefill:
                raise ValueError(f"message {index} is empty; only a final assistant message may be")
        return messages

    @field_validator("messages")
    @classmethod
    def _can_be_continued(cls, messages: list[AnthropicMessage]) -> list[AnthropicMessage]:
        last = messages[-1]
        if last.role == "assistant":
            if any(isinstance(block, AnthropicToolUse) for block in last.content):
                raise ValueError("a final assistant message must not call a tool; its result comes next")
            if (text := text_of(last.content)) != text.rstrip():
                raise ValueError("a final assistant message must not end with whitespace, or it cannot be continued")
        return messages

    @field_validator("messages")
    @classmethod
    def _have_called_what_answers(cls, messages: list[AnthropicMessage]) -> list[AnthropicMessage]:
        called = set[str]()
        for index, message in enumerate(messages):
            for block in message.content:
                if isinstance(block, AnthropicToolUse):
                    called.add(block.id)
                elif isinstance(block, AnthropicToolResult) and block.tool_use_id not in called:
                    raise ValueError(f"message {index} has the result of an unknown call: {block.tool_use_id!r}")
        return messages

    @model_validator(mode="after")
    def _refuse_unsupported(self) -> AnthropicCountBody:
        for name in UNSUPPORTED:
            if (self.model_extra or {}).get(name) not in (None, False, [], {}, ""):
                raise ValueError(f"{name!r} is not supported by this server; leave it out")
        return self

    @property
    def shows_thinking(self) -> bool:
        """Return True if answers contain thinking."""
        thinking = self.thinking
        return thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"

    @property
    def continues(self) -> bool:
        """Return True if the answer continues a final assistant message."""
        return self.messages[-1].role == "assistant" and bool(text_of(self.messages[-1].content))

    def chat(self) -> ChatRequest:
        """Convert the body to the server's chat request."""
        prompt = conversation(text_of(self.system or ""), self.messages)
        choice = self.tool_choice
        constraint, field = self._constraint()
        return ChatRequest(
            messages=prompt.messages,
            images=prompt.images,
            tools=[tool.function() for tool in self.tools or ()],
            tool_choice=choice.choice() if choice else None,
            parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
            tool_schema_field="input_schema",
            constraint=constraint,
            constraint_field=field,
            reasoning_effort=self.output_config.effort if self.output_config else None,
            prefer_no_reasoning=self.thinking is not None and self.thinking.type == "disabled",
            continue_final_message=self.continues,
        )

    def _constraint(self) -> tuple[Constraint | None, str]:
        """Return the constraint of the answer and its field."""
        if self.output_config and self.output_config.format:
            format, field = self.output_config.format, "output_config.format.schema"
        elif self.output_format is not None:
            format, field = self.output_format, "output_format.schema"
        else:
            return None, ""
        return Constraint("json_schema", json.dumps(format.schema_, ensure_ascii=False)), field


class AnthropicBody(AnthropicCountBody, ProcessorFieldsBody):
    """Body of ``POST /v1/messages``."""

    max_tokens: Annotated[Integer, Field(ge=0)]
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=0)] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    metadata: AnthropicMetadata | None = None

    def sampling(self) -> dict[str, Any]:
        """Return the given sampling parameters by their native names, without the fields of logits processors."""
        native = {
            "max_new_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k or None,
            "stop": self.stop_sequences or None,
        }
        return {**{name: value for name, value in native.items() if value is not None}, **self.processor_fields}
