"""Log-probabilities of a choice, computed from those of "prompt + choice".

A choice's first characters may join the prompt's last token (token healing), so the tokens of a choice are found by
characters. If one choice joins earlier characters, all are scored from there on: otherwise they would not be compared
on the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug_lang.choices import ScoredChoice

HEALED_TOKENS = 2
"""Tokens at the end of the prompt that are scored as well."""

Entry = Sequence[Any]
"""Log-probability or ``None``, token, and text or ``None``."""


def scored_choices(choices: Sequence[str], answers: Sequence[Mapping[str, Any]], prompt_len: int) -> list[ScoredChoice]:
    """Return one scored choice for each choice.

    Args:
        answers: responses of ``/generate``, with ``input_token_logprobs`` from shortly before the end of the prompt.
        prompt_len: tokens of the prompt alone; it is used if the texts of tokens are unknown.
    """
    rows: list[Sequence[Entry]] = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    starts = _starts_by_text(choices, rows)
    if starts is None:
        starts = []
        for row, answer in zip(rows, answers, strict=True):
            first = answer["meta_info"]["prompt_tokens"] - len(row)
            starts.append(max(0, min(prompt_len - first, len(row) - 1)))
    return [
        ScoredChoice(choice, tuple(entry[1] for entry in row[start:]), tuple(entry[0] or 0.0 for entry in row[start:]))
        for choice, row, start in zip(choices, rows, starts, strict=True)
    ]


def _starts_by_text(choices: Sequence[str], rows: Sequence[Sequence[Entry]]) -> list[int] | None:
    """Return the index of the first scored entry for each choice; ``None`` if the texts of tokens are unknown."""
    borders = []
    for choice, row in zip(choices, rows, strict=True):
        texts = [entry[2] for entry in row if len(entry) > 2 and entry[2] is not None]
        if len(texts) < len(row) or not "".join(texts).endswith(choice):
            return None
        borders.append(_borders(texts, len(choice)))
    earliest = min(max(offset for offset in offsets if offset <= 0) for offsets in borders)
    return [next(index for index, end in enumerate(offsets[1:]) if end > earliest) for offsets in borders]


def _borders(texts: Sequence[str], choice: int) -> list[int]:
    """Return the borders of tokens in characters, counted from the end of the prompt; the first is 0 or less."""
    offsets = [choice - sum(map(len, texts))]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return offsets
