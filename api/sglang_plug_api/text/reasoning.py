"""Reasoning and constraints of one request: the output may reason first, and then follows its constraint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang_plug import OutputParser, ReasoningPrefix, Tokenizer
from sglang_plug_api.openai.chat_events import Choice, Reading

from .text_engine import TextEngine

PROMPT_TOKENS = 16
"""Tokens at the end of a prompt in which parsers look for opened or closed reasoning."""
SWITCHES = ("enable_thinking", "thinking")
"""Template variables by which callers disable reasoning."""


def apply_reasoning(
    reading: Reading,
    parser: type[OutputParser] | None,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    variables: Mapping[str, Any] | None = None,
    *,
    constrained: bool,
    calls: bool = False,
) -> tuple[Reading, ReasoningPrefix | None]:
    """Return how outputs after ``prompt`` are read, and the reasoning that may precede their constrained part.

    Args:
        reading: the part that does not depend on the prompt.
        parser: parser of the server's reasoning format.
        tokenizer: tokenizer of the prompt.
        prompt: tokens of the prompt.
        variables: variables of the chat template.
        constrained: True if outputs are constrained.
        calls: True if they are constrained to tool calls, alone or between texts.
    """
    if parser is None:
        return reading, None
    end = tokenizer.decode(prompt[-PROMPT_TOKENS:], skip_special=False)
    disabled = any((variables or {}).get(name) is False for name in SWITCHES)
    marks = None if disabled else parser.marks(end, calls=calls)
    if marks is None:
        return reading, None
    reading = replace(reading, reasoning=parser, lead=marks.opened, calls_end_reasoning=not constrained)
    if not constrained:
        return reading, None
    ends = tuple(_tokens(tokenizer, text) for text in marks.ends)
    return reading, ReasoningPrefix(ends, _tokens(tokenizer, marks.opening))


async def reasoning_tokens(engine: TextEngine, choices: Iterable[Choice]) -> int | None:
    """Count the reasoning tokens of ``choices``; ``None`` if reasoning is not told apart from the answers.

    The texts are tokenized again, because the marks of reasoning do not end where pieces of output end. A model that
    wrote unusual tokens used a few more.
    """
    texts = [choice.reasoning for choice in choices]
    known = [text for text in texts if text is not None]
    if not known:
        return None
    return sum([len(await engine.encode(text, special=False)) for text in known])


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of ``text`` alone; some tokenizers add a blank at the start of a text."""
    for lead in ("", "\n"):
        tokens = tokenizer.encode(lead + text, special=False)
        for start in range(len(tokens) + 1):
            if b"".join(map(tokenizer.piece_bytes, tokens[start:])) == text.encode():
                return tuple(tokens[start:])
    return tuple(tokenizer.encode(text, special=False))
