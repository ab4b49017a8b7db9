"""Reasoning and constraints of one request: an output may think first, and then keeps to its constraint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang_plug import OutputParser, Preamble, Tokenizer

from .chat_events import Choice, Reading
from .text import TextEngine

PROMPT_TOKENS = 16
"""At the end of a prompt, for parsers to see whether it has opened or closed the reasoning."""
SWITCHES = ("enable_thinking", "thinking")
"""Template variables by which callers switch reasoning off."""


def reasoned(
    reading: Reading,
    parser: type[OutputParser] | None,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    variables: Mapping[str, Any] | None = None,
    *,
    constrained: bool,
    calls: bool = False,
) -> tuple[Reading, Preamble | None]:
    """How outputs after ``prompt`` are read, and what may stand before the part of them that is constrained.

    Args:
        reading: as far as it does not depend on the prompt.
        parser: of the server's reasoning format.
        tokenizer: of the prompt.
        prompt: tokens.
        variables: of the chat template.
        constrained: outputs are constrained.
        calls: to calls, alone or between texts.
    """
    if parser is None:
        return reading, None
    end = tokenizer.decode(prompt[-PROMPT_TOKENS:], skip_special=False)
    off = any((variables or {}).get(name) is False for name in SWITCHES)
    marks = None if off else parser.marks(end, calls=calls)
    if marks is None:
        return reading, None
    reading = replace(reading, reasoning=parser, lead=marks.opened)
    if not constrained:
        return reading, None
    ends = tuple(_tokens(tokenizer, one) for one in marks.ends)
    return reading, Preamble(ends, _tokens(tokenizer, marks.opening))


async def reasoning_tokens(engine: TextEngine, choices: Iterable[Choice]) -> int | None:
    """How many tokens the reasoning of ``choices`` is; ``None`` if it is not told apart from the answers.

    The texts are tokenised again, because what marks the reasoning is not cut like the engine's outputs: a model that
    wrote a text in unusual tokens used a few more.
    """
    texts = [choice.reasoning for choice in choices]
    known = [text for text in texts if text is not None]
    if not known:
        return None
    return sum([len(await engine.encode(text, special=False)) for text in known])


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Of ``text`` alone; some tokenizers add a blank to what begins a text."""
    for lead in ("", "\n"):
        tokens = tokenizer.encode(lead + text, special=False)
        for start in range(len(tokens) + 1):
            if b"".join(map(tokenizer.piece_bytes, tokens[start:])) == text.encode():
                return tuple(tokens[start:])
    return tuple(tokenizer.encode(text, special=False))
