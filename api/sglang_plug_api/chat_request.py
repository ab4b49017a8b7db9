"""From a conversation, with its tools and images, to a prompt and to how its outputs are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import Constraint, Media, Preamble

from .chat_events import Choice, Reading
from .constraints import check_writable
from .images import GivenImage
from .protocol.openai import Effort
from .protocol.tools import Tool, ToolChoice
from .reasoning import reasoned
from .template_variables import template_variables
from .text import TextEngine
from .tools import tooling


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What a route reads from the body of a chat request, whatever its dialect."""

    messages: Sequence[Mapping[str, Any]]
    """As ``Tokenizer.chat`` takes them."""
    images: Sequence[GivenImage] = ()
    """One for each placeholder in ``messages``, in order."""
    tools: Sequence[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    constraint: Constraint | None = None
    """What the request itself wants outputs to look like."""
    constraint_field: str = ""
    """Where it says so, for errors; empty: in a field named by its kind."""
    reasoning_effort: Effort | None = None
    prefer_no_reasoning: bool = False
    """Leave reasoning out where the chat template can; an effort of ``none`` is refused where it cannot."""
    separate_reasoning: bool = True
    stream_reasoning: bool = True
    template_variables: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """Outputs go on with the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """What ``prepare_chat`` makes: fields of the ``Job``, and readers of its outputs."""

    tokens: Sequence[int]
    media: tuple[Media, ...]
    constraint: Constraint | None
    """Of calls, or the request's own."""
    constraint_field: str
    """Where the request says it."""
    preamble: Preamble | None
    reading: Reading

    def output(self) -> Choice:
        """Reads one output: what the pieces bring of text, reasoning and calls."""
        return Choice(self.reading)

    def sampling(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """``given`` parameters in native names, with what the parsers need."""
        return {**given, **({"skip_special_tokens": False} if self.reading.needs_special_tokens else {})}


async def prepare_chat(engine: TextEngine, asked: ChatRequest) -> ChatPrompt:
    """Check, render and tokenise. Raises ``ApiError``."""
    has_format = asked.constraint is not None
    if asked.constraint is not None:
        check_writable(asked.constraint)
    tools = tooling(engine.parsers, asked.tools, asked.tool_choice, asked.parallel_tool_calls, has_format=has_format)
    variables = template_variables(
        engine,
        asked.template_variables,
        "none" if asked.prefer_no_reasoning else asked.reasoning_effort,
        tools=tools.shown is not None,
        insist=not asked.prefer_no_reasoning,
    )
    if asked.images and not engine.sees:
        raise asked.images[0].error("this model takes text only")
    tokens = await engine.encode_chat(
        asked.messages,
        tools=tools.shown,
        add_generation_prompt=asked.add_generation_prompt and not asked.continue_final_message,
        continue_final_message=asked.continue_final_message,
        variables=variables,
    )
    prompt = await engine.with_images(tokens, asked.images)
    constraint = tools.constraint or asked.constraint
    reading, preamble = reasoned(
        tools.reading(engine.parsers, separate=asked.separate_reasoning, stream_reasoning=asked.stream_reasoning),
        None if asked.continue_final_message else engine.parsers.reasoning,
        engine.tokenizer,
        prompt.tokens,
        variables,
        constrained=constraint is not None,
        calls=tools.constraint is not None,
    )
    return ChatPrompt(
        tokens=prompt.tokens,
        media=prompt.media,
        constraint=constraint,
        constraint_field="tools" if tools.constraint else asked.constraint_field,
        preamble=preamble,
        reading=reading,
    )
