"""Preparation of a chat request: from a conversation with tools and images to a job and the parsing of its outputs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang_plug import Constraint, MediaPrompt
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.multimodal.images import RequestImage
from sglang_plug_api.protocol.openai import ChatBody, Effort
from sglang_plug_api.protocol.tools import Tool, ToolChoice
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.service.request_context import current_request_context
from sglang_plug_api.text.chat_events import ChatParsingOptions
from sglang_plug_api.text.constraints import check_writable, with_backend
from sglang_plug_api.text.job import Job
from sglang_plug_api.text.reasoning import apply_reasoning
from sglang_plug_api.text.text_engine import TextEngine

from .choices import generation_truncation
from .template_variables import EFFORT, template_variables
from .tools import SCHEMA, tool_setup

TemplateTools = Sequence[Mapping[str, Any]] | None
RenderChat = Callable[[TemplateTools, Mapping[str, Any]], Awaitable[MediaPrompt]]
"""Renders the prompt of a conversation with the tools and the variables of the chat template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A chat request, independent of the API that it came through."""

    messages: Sequence[Mapping[str, Any]]
    """Messages in the format of ``Tokenizer.chat``."""
    images: Sequence[RequestImage] = ()
    """One for each placeholder in ``messages``, in order."""
    tools: Sequence[Tool] | None = None
    tool_choice: ToolChoice | None = None
    tool_schema_field: str = SCHEMA
    """The field of a tool that has the schema of its arguments, for errors."""
    parallel_tool_calls: bool | None = None
    constraint: Constraint | None = None
    """The constraint that the request itself sets."""
    constraint_field: str = ""
    """The field that sets it, for errors; empty: the field named by its kind."""
    grammar_backend: str | None = None
    """The grammar backend that must enforce constraints, those of tool calls included; ``None``: the first that can."""
    reasoning_effort: Effort | float | None = None
    reasoning_effort_field: str = EFFORT
    """The field that has the effort, for errors."""
    prefer_no_reasoning: bool = False
    """Disable reasoning where the chat template can; an effort of ``none`` is refused where it cannot."""
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    include_reasoning: bool = True
    """False leaves the reasoning out of the answer."""
    template_variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """True if outputs continue the last message."""


def truncated_chat(engine: TextEngine, body: ChatBody, job: Job) -> Job:
    """Return ``job`` with its prompt cut to ``truncate_prompt_tokens``. Raises ``ApiError`` if images would be cut."""
    truncation = generation_truncation(engine, body)
    if truncation is None or len(job.tokens) <= truncation.max_tokens:
        return job
    if job.media:
        raise ApiError("a prompt with images cannot be truncated", param="truncate_prompt_tokens")
    return replace(job, tokens=truncation.cut(job.tokens))


async def prepare_chat(engine: TextEngine, request: ChatRequest) -> tuple[Job, ChatParsingOptions]:
    """Check, render and tokenize a chat request. Raises ``ApiError``.

    Returns a job with the prompt and its constraint, which lacks everything that the conversation does not determine
    (sampling parameters, ids, priority, adapter), and how its outputs are read (``ChatOutput``).
    """

    if request.continue_final_message and request.messages and request.messages[-1].get("tool_calls"):
        raise ApiError(
            "the last message cannot be continued, because calls of tools follow its text: add their results",
            param="messages",
        )

    async def render(tools: TemplateTools, variables: Mapping[str, Any]) -> MediaPrompt:
        if request.images and not engine.supports_images:
            raise request.images[0].error("this model takes text only")
        tokens = await engine.encode_chat(
            request.messages,
            context=current_request_context(),
            tools=tools,
            add_generation_prompt=request.add_generation_prompt and not request.continue_final_message,
            continue_final_message=request.continue_final_message,
            variables=variables,
        )
        return await engine.with_images(tokens, request.images)

    return await prepare_rendered_chat(engine, request, render)


async def prepare_rendered_chat(
    engine: TextEngine, request: ChatRequest, render: RenderChat
) -> tuple[Job, ChatParsingOptions]:
    """Prepare a chat request as ``prepare_chat`` does, with a prompt that ``render`` makes of its messages."""
    has_format = request.constraint is not None
    if request.constraint is not None:
        check_writable(request.constraint, request.constraint_field or request.constraint.kind)
    tools = tool_setup(
        engine.parsers,
        request.tools,
        request.tool_choice,
        request.parallel_tool_calls,
        has_format=has_format,
        schema_field=request.tool_schema_field,
    )
    variables = template_variables(
        engine,
        request.template_variables,
        "none" if request.prefer_no_reasoning else request.reasoning_effort,
        tools=tools.template_tools is not None,
        field=request.reasoning_effort_field,
        strict=not request.prefer_no_reasoning,
    )
    prompt = await render(tools.template_tools, variables)
    constraint = tools.constraint or request.constraint
    job = Job(
        tokens=prompt.tokens,
        media=prompt.media,
        constraint=with_backend(constraint, request.grammar_backend),
        constraint_field="tools" if tools.constraint else request.constraint_field,
        caller=current_caller(),
        context=current_request_context(),
    )
    parsing = replace(
        tools.parsing,
        separate=request.separate_reasoning or not request.include_reasoning,
        stream_reasoning=request.stream_reasoning,
        include_reasoning=request.include_reasoning,
    )
    parser = engine.parsers.reasoning
    if parser is None or request.continue_final_message:
        return job, parsing
    return apply_reasoning(job, parsing, parser, engine.tokenizer, variables, calls=tools.constraint is not None)
