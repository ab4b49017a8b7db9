"""Reasoning and constraints of one request: the output may reason first, and then follows its constraint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang_plug import OutputParser, ReasoningBlock, ReasoningMarks, ReasoningPrefix, Tokenizer

from .chat_events import ChatParsingOptions
from .job import Job
from .text_engine import TextEngine

PROMPT_TOKENS = 16
"""Tokens at the end of a prompt in which parsers look for opened or closed reasoning."""
SWITCHES = ("enable_thinking", "thinking")
"""Template variables by which callers disable reasoning."""
NO_REASONING = ReasoningBlock(())
"""Says of an output that it has no reasoning."""


def apply_reasoning(
    job: Job,
    parsing: ChatParsingOptions,
    parser: type[OutputParser],
    tokenizer: Tokenizer,
    variables: Mapping[str, Any],
    *,
    calls: bool,
) -> tuple[Job, ChatParsingOptions]:
    """Return ``job`` with the marks around the reasoning of its outputs, and how these are read.

    Args:
        job: its prompt was rendered by a chat template.
        parsing: the part that does not depend on the prompt.
        parser: parser of the server's reasoning format.
        tokenizer: tokenizer of the prompt.
        variables: variables of the chat template.
        calls: True if outputs are constrained to tool calls, alone or between texts.
    """
    disabled = any(variables.get(name) is False for name in SWITCHES)
    marks = None if disabled else _marks(parser, tokenizer, job.tokens, calls=calls)
    if marks is None:
        return replace(job, reasoning=NO_REASONING), parsing
    is_constrained = job.constraint is not None
    parsing = replace(parsing, reasoning=parser, lead=marks.opened, calls_end_reasoning=not is_constrained)
    prefix = None
    if is_constrained:
        ends = tuple(_tokens(tokenizer, text) for text in marks.ends)
        prefix = ReasoningPrefix(ends, _tokens(tokenizer, marks.opening))
    return replace(job, reasoning_prefix=prefix, reasoning=_block(tokenizer, marks)), parsing


def with_reasoning(engine: TextEngine, jobs: Sequence[Job]) -> list[Job]:
    """Return ``jobs`` whose prompts no chat template has rendered, with the reasoning of their outputs.

    Their constraints apply from the first token on, so constrained outputs have no reasoning.
    """
    parser = engine.parsers.reasoning
    if parser is None or not engine.encoder.has_tokenizer:
        return list(jobs)
    blocks: dict[int, ReasoningBlock] = {}
    for job in jobs:
        if id(job.tokens) not in blocks:
            marks = _marks(parser, engine.tokenizer, job.tokens, calls=False)
            blocks[id(job.tokens)] = NO_REASONING if marks is None else _block(engine.tokenizer, marks)
    return [replace(job, reasoning=blocks[id(job.tokens)] if job.constraint is None else NO_REASONING) for job in jobs]


def _marks(
    parser: type[OutputParser], tokenizer: Tokenizer, prompt: Sequence[int], *, calls: bool
) -> ReasoningMarks | None:
    known = [token for token in prompt[-PROMPT_TOKENS:] if 0 <= token < tokenizer.vocab_size]
    return parser.marks(tokenizer.decode(known, skip_special=False), calls=calls)


def _block(tokenizer: Tokenizer, marks: ReasoningMarks) -> ReasoningBlock:
    ends, opening, repeats = marks.ends, marks.opening, False
    if (block := marks.block) is not None:
        ends, opening, repeats = block.ends, block.opening, block.repeats
    return ReasoningBlock(tuple(_tokens(tokenizer, text) for text in ends), _tokens(tokenizer, opening), repeats)


async def reasoning_tokens(engine: TextEngine, reasoning: Iterable[str]) -> int:
    """Count the tokens of the reasoning of several outputs.

    The texts are tokenized again, because the marks of reasoning do not end where pieces of output end. A model that
    wrote unusual tokens used a few more.
    """
    return sum([len(await engine.encode(text, special=False)) for text in reasoning])


def _tokens(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return the tokens of ``text`` alone; some tokenizers add a blank at the start of a text."""
    for lead in ("", "\n"):
        tokens = tokenizer.encode(lead + text, special=False)
        for start in range(len(tokens) + 1):
            if b"".join(map(tokenizer.piece_bytes, tokens[start:])) == text.encode():
                return tuple(tokens[start:])
    return tuple(tokenizer.encode(text, special=False))
