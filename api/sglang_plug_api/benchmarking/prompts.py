"""The prompts of a benchmark: random ones, or conversations from a file in ShareGPT's format."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_plug import AUTO, ConfigError, Facts, Plugins, Tokenizer, TokenizerSource
from sglang_plug.plugins.attribution import make_with_settings

FIRST_TOKEN = 100
"""Smallest token id in a random prompt: special tokens often have smaller ones."""
CHARACTERS_PER_TOKEN = 4
"""Guess for the length of an answer without a tokenizer."""
RANDOM_OUTPUT = 128
"""Tokens that are generated for a random prompt, as in ``vllm bench``."""
WORDS = "time year people way day man thing woman life child world school state family student group country".split()


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: its text, or its token ids, and how many tokens to generate."""

    content: str | list[int]
    output_len: int


def prompts_of(options: argparse.Namespace, plugins: Plugins, vocabulary: int | None) -> list[Prompt]:
    """Return the prompts that the arguments of ``data_arguments`` describe.

    Args:
        options: the parsed arguments.
        plugins: for the tokenizer.
        vocabulary: number of token ids; ``None`` if prompts have to be text.

    Raises ``ConfigError`` if the data set or the tokenizer cannot be read.
    """
    tokenizer = None if options.tokenizer is None else read_tokenizer(options.tokenizer, plugins)
    if options.dataset_name == "sharegpt":
        if options.dataset_path is None:
            raise ConfigError("--dataset-name sharegpt needs --dataset-path FILE; nothing is downloaded")
        return sharegpt_prompts(
            options.dataset_path, options.num_prompts, options.output_len, seed=options.seed, tokenizer=tokenizer
        )
    return random_prompts(
        options.num_prompts,
        options.input_len,
        options.output_len or RANDOM_OUTPUT,
        options.random_range_ratio,
        vocabulary=vocabulary,
        seed=options.seed,
        tokenizer=tokenizer,
    )


def read_tokenizer(folder: Path, plugins: Plugins) -> Tokenizer:
    """Return the tokenizer in a folder or a checkpoint file. Raises ``ConfigError``."""
    if not folder.exists():
        raise ConfigError(f"--tokenizer {str(folder)!r}: there is no such folder or file; nothing is downloaded")
    source = TokenizerSource(path=folder)
    component = plugins.resolve("tokenizer", AUTO, Facts(subjects={"tokenizer": source}))
    tokenizer: Tokenizer = make_with_settings(component, source, contract=Tokenizer)
    return tokenizer


def random_prompts(
    count: int,
    input_len: int,
    output_len: int,
    range_ratio: float,
    *,
    vocabulary: int | None,
    seed: int,
    tokenizer: Tokenizer | None = None,
) -> list[Prompt]:
    """Return random prompts, the same ones for the same seed.

    Args:
        count: number of prompts.
        input_len: mean number of tokens of a prompt.
        output_len: mean number of tokens to generate.
        range_ratio: lengths vary evenly by this share, from 0 to 1.
        vocabulary: number of token ids to draw from; ``None``: the prompts are text.
        seed: of the random numbers.
        tokenizer: makes texts of random token ids; without it, texts are words of about one token each.
    """
    generator = random.Random(seed)

    def length(mean: int) -> int:
        return max(1, round(mean * generator.uniform(1 - range_ratio, 1 + range_ratio)))

    prompts = []
    for _ in range(count):
        size = length(input_len)
        ids = tokenizer.vocab_size if vocabulary is None and tokenizer is not None else vocabulary
        content: str | list[int]
        if ids is None:
            content = " ".join(generator.choice(WORDS) for _ in range(size))
        else:
            content = [generator.randrange(min(FIRST_TOKEN, ids - 1), ids) for _ in range(size)]
            if vocabulary is None and tokenizer is not None:
                content = tokenizer.decode(content)
        prompts.append(Prompt(content, length(output_len)))
    return prompts


def sharegpt_prompts(
    path: Path, count: int, output_len: int | None, *, seed: int, tokenizer: Tokenizer | None = None
) -> list[Prompt]:
    """Return the first messages of conversations in a file, in random order, repeated if there are too few.

    Each is answered with as many tokens as the recorded answer has, or with ``output_len``. Without a tokenizer the
    number is estimated. Raises ``ConfigError`` if the file is not a JSON list of objects with ``conversations``.
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

    def length(answer: str) -> int:
        return (
            len(answer) // CHARACTERS_PER_TOKEN if tokenizer is None else len(tokenizer.encode(answer, special=False))
        )

    return [Prompt(text, output_len or max(1, length(answer))) for text, answer in chosen]


def _first_exchange(entry: Any) -> tuple[str, str] | None:
    turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value", turn.get("content")) if isinstance(turn, dict) else None for turn in turns[:2]]
    return (texts[0], texts[1]) if isinstance(texts[0], str) and texts[0] and isinstance(texts[1], str) else None
