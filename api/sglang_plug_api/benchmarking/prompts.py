"""The prompts of a benchmark: random ones, or conversations from a file in ShareGPT's format."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_plug import ConfigError

FIRST_TOKEN = 100
"""Smallest token id in a random prompt: special tokens often have smaller ones."""
CHARACTERS_PER_TOKEN = 4
"""Guess for the length of an answer, because this client has no tokenizer."""
WORDS = "time year people way day man thing woman life child world school state family student group country".split()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its text, or its token ids, and how many tokens to generate."""

    content: str | list[int]
    output_len: int


def random_prompts(
    count: int, input_len: int, output_len: int, range_ratio: float, *, vocabulary: int | None, seed: int
) -> list[Prompt]:
    """Return random prompts, the same ones for the same seed.

    Args:
        count: number of prompts.
        input_len: mean number of tokens of a prompt.
        output_len: mean number of tokens to generate.
        range_ratio: lengths vary evenly by this share, from 0 to 1.
        vocabulary: number of token ids to draw from; ``None``: draw words, about one token each.
        seed: of the random numbers.
    """
    draw = random.Random(seed)

    def length(mean: int) -> int:
        return max(1, round(mean * draw.uniform(1 - range_ratio, 1 + range_ratio)))

    prompts = []
    for _ in range(count):
        size = length(input_len)
        content: str | list[int]
        if vocabulary is None:
            content = " ".join(draw.choice(WORDS) for _ in range(size))
        else:
            content = [draw.randrange(min(FIRST_TOKEN, vocabulary - 1), vocabulary) for _ in range(size)]
        prompts.append(Prompt(content, length(output_len)))
    return prompts


def sharegpt_prompts(path: Path, count: int, output_len: int | None, *, seed: int) -> list[Prompt]:
    """Return the first messages of conversations in a file, in random order, repeated if there are too few.

    Each is answered with as many tokens as the recorded answer has, about, or with ``output_len``. Raises
    ``ConfigError`` if the file is not a JSON list of objects with ``conversations``.
    """
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dataset-path {path} cannot be read as JSON: {error}") from error
    turns = [pair for entry in (entries if isinstance(entries, list) else ()) if (pair := _first_exchange(entry))]
    if not turns:
        raise ConfigError(f"--dataset-path {path} has no conversation: a list of objects with 'conversations' expected")
    random.Random(seed).shuffle(turns)
    chosen: Sequence[tuple[str, str]] = [turns[index % len(turns)] for index in range(count)]
    return [Prompt(text, output_len or max(1, len(answer) // CHARACTERS_PER_TOKEN)) for text, answer in chosen]


def _first_exchange(entry: Any) -> tuple[str, str] | None:
    turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value", turn.get("content")) if isinstance(turn, dict) else None for turn in turns[:2]]
    return (texts[0], texts[1]) if isinstance(texts[0], str) and texts[0] and isinstance(texts[1], str) else None
