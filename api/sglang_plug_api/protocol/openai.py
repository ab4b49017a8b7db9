"""Bodies of the OpenAI routes, with the extensions that SGLang's clients use."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from sglang_plug_api.answers.errors import WrongField

from .base import SHOWN, Integer, Many, Name, Prompts, RequestBody, SchedulingFields, Side, TruncatedLength
from .misplaced import CHAT, COMPLETION, EVERYWHERE, Remedies
from .sampling import ConstraintFields, SamplingFields, StructuredOutputs
from .tools import ToolChoice, Tools

MAX_TOP_LOGPROBS = 20
MAX_MESSAGES = 16384


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]
NumericEffort = Annotated[float, Field(strict=True, ge=0, le=0.99)]
"""An effort as a number, for chat templates that know such efforts; SGLang's extension of OpenAI's levels."""


class StreamOptions(RequestBody):
    """``stream_options``."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationBody(SamplingFields, ConstraintFields, SchedulingFields):
    """Fields of both chat and completions; a list has an entry for each prompt."""

    model: Name | None = None
    cache_salt: Name | Many[Name | None] | None = None
    extra_key: Name | Many[Name | None] | None = None
    lora_path: Name | Many[Name | None] | None = None
    """An adapter's name; it may also be the ``model``, or stand behind it and a colon."""
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Integer | None = Field(None, ge=1)
    max_tokens: Integer | None = Field(None, ge=0)
    min_tokens: Integer | None = None
    include_stop_str_in_output: bool | None = None
    rid: Name | Many[Name] | None = None
    request_id: Name | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Integer | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    """Return the likeliest tokens at every position of the prompt, too; not in a stream."""
    return_token_ids: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_meta_info: bool | None = None
    return_cached_tokens_details: bool | None = None
    truncate_prompt_tokens: TruncatedLength | None = None
    truncation_side: Side | None = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise WrongField("stream_options", "stream_options is only allowed when stream is true")
        if self.prompt_logprobs is not None and self.stream:
            raise WrongField("prompt_logprobs", "prompt_logprobs is only allowed when stream is false")
        return self

    @property
    def usage_in_stream(self) -> bool:
        """Report whether the last event contains the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Report whether every event contains the usage so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats


class CalledFunction(RequestBody):
    """A function that was called; ``arguments`` is JSON text, or an object as some clients send it."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class MessageCall(RequestBody):
    """A call that the model made earlier."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


MUST_SAY = ("system", "developer", "user")
"""Roles whose messages cannot be without content: the others' can be calls, or what a call gave back."""


class Message(RequestBody):
    """One message of a conversation."""

    misplaced: ClassVar[Remedies] = {
        **EVERYWHERE,
        "function_call": "use tool_calls",
        "audio": "there is no audio output",
    }

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Many[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: Many[MessageCall] | None = None
    refusal: str | None = None
    tool_call_id: str | None = None

    @field_validator("content")
    @classmethod
    def _refusals_are_text(cls, content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
        return [_refusal_as_text(part) for part in content] if isinstance(content, list) else content

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and self.role in MUST_SAY:
            raise WrongField("content", f"messages of role {self.role!r} need content, a text or a list of parts")
        return self

    @property
    def has_parts(self) -> bool:
        """True if the content is a list of parts, some of which may be images."""
        return isinstance(self.content, list)

    def plain(self) -> dict[str, Any]:
        """Return the message for chat templates: text parts joined, images as placeholders, unset fields left out."""
        message = self.model_dump(exclude_none=True, exclude={"content", "refusal"})
        message["content"] = _written(self.content) or self.refusal or ""
        return message


def _refusal_as_text(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("refusal")
    is_refusal = part.get("type") == "refusal" and isinstance(text, str)
    return {"type": "text", "text": text} if is_refusal else part


def _written(content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]]:
    if not isinstance(content, list):
        return content or ""
    if all(part["type"] == "text" for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return [{"type": "text", "text": part["text"]} if part["type"] == "text" else {"type": "image"} for part in content]


def check_end_of_prompt(body: RequestBody, *, continue_final_message: bool, add_generation_prompt: bool | None) -> None:
    """Raise ``WrongField`` if the prompt of ``body`` is to end both inside the last message and before a new one."""
    if continue_final_message and add_generation_prompt and "add_generation_prompt" in body.model_fields_set:
        raise WrongField(
            "add_generation_prompt", "add_generation_prompt and continue_final_message cannot both be true"
        )


def text_or_images(messages: list[Message]) -> list[Message]:
    """``messages``. Raises ``ValueError`` if there are none, or if one has a part that is neither text nor image."""
    if not messages:
        raise ValueError("Messages cannot be empty.")
    for index, message in enumerate(messages):
        for part in message.content if isinstance(message.content, list) else ():
            kind = part.get("type")
            if kind not in ("text", "image_url"):
                raise ValueError(
                    f"message {index} has a content part of type {str(kind)[:SHOWN]!r}; parts are of type 'text', or "
                    "'image_url' for vision-language models"
                )
            if kind == "text" and not isinstance(part.get("text"), str):
                raise ValueError(f"message {index} has a text part whose text is not a string")
    return messages


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    misplaced: ClassVar[Remedies] = CHAT

    messages: Annotated[Many[Message], Field(max_length=MAX_MESSAGES)]
    max_completion_tokens: Integer | None = Field(None, ge=0)
    logprobs: bool | None = False
    top_logprobs: Integer | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | NumericEffort | None = None
    separate_reasoning: bool | None = True
    stream_reasoning: bool | None = True
    include_reasoning: bool | None = True
    """False leaves the reasoning out of the answer; it is generated all the same."""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False

    @field_validator("messages")
    @classmethod
    def _check_messages(cls, messages: list[Message]) -> list[Message]:
        return text_or_images(messages)

    @model_validator(mode="after")
    def _check_end(self) -> ChatBody:
        check_end_of_prompt(
            self,
            continue_final_message=self.continue_final_message,
            add_generation_prompt=self.add_generation_prompt,
        )
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise WrongField("top_logprobs", "top_logprobs needs logprobs to be true")
        return self


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    misplaced: ClassVar[Remedies] = COMPLETION

    prompt: Prompts
    echo: bool | None = False
    logprobs: Integer | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    add_special_tokens: bool = True
    """Add the special tokens that the model expects around a text."""
    best_of: Integer | None = None
    suffix: str | None = None

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, prompt: Prompts) -> Prompts:
        if not prompt or (isinstance(prompt, list) and ("" in prompt or [] in prompt)):
            raise ValueError("Prompt cannot be empty")
        return prompt

    @model_validator(mode="after")
    def _check_legacy(self) -> CompletionBody:
        if self.best_of not in (None, 1, self.n or 1):
            raise WrongField("best_of", "best_of is not supported; use n")
        if self.suffix:
            raise WrongField("suffix", "suffix is not supported by this model")
        return self

    def prompts(self) -> list[str] | list[list[int]]:
        """One entry for each prompt."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if isinstance(prompt[0], int):
            return [prompt]
        return prompt
