"""From the log-probabilities of "prompt + choice" to those of the choice.

A choice's first characters may join the prompt's last token (token healing), so what belongs to the choice is found
by characters. If one choice joins earlier characters, all are scored from there on: else they would not be compared
on the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sglang_plug_lang.choices import ScoredChoice

HEALED_TOKENS = 2
"""Tokens at the end of the prompt that are scored too."""

Entry = Sequence[Any]
"""Log-probability or ``None``, token, text or ``None``."""


def scored_choices(choices: Sequence[str], answers: Sequence[Mapping[str, Any]], prompt_len: int) -> list[ScoredChoice]:
    """One for each choice.

    Args:
        answers: of ``/generate``, with ``input_token_logprobs`` from shortly before the end of the prompt on.
        prompt_len: tokens of the prompt alone; what counts where the texts of tokens are not known.
    """
    rows: list[Sequence[Entry]] = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    starts = _starts_by_text(choices, rows)
    if starts is None:
        starts = []
        for row, answer in zip(rows, answers, strict=True):
            first = answer["meta_info"]["prompt_tokens"] - len(row)
            starts.append(max(0, min(prompt_len - first, len(row) - 1)))
    return [
        ScoredChoice(choice, tuple(one[1] for one in row[start:]), tuple(one[0] or 0.0 for one in row[start:]))
        for choice, row, start in zip(choices, rows, starts, strict=True)
    ]


def _starts_by_text(choices: Sequence[str], rows: Sequence[Sequence[Entry]]) -> list[int] | None:
    """Index of the first entry that counts, for each choice; ``None`` if the texts do not tell."""
    borders = []
    for choice, row in zip(choices, rows, strict=True):
        texts = [one[2] for one in row if len(one) > 2 and one[2] is not None]
        if len(texts) < len(row) or not "".join(texts).endswith(choice):
            return None
        borders.append(_borders(texts, len(choice)))
    earliest = min(max(place for place in places if place <= 0) for places in borders)
    return [next(index for index, end in enumerate(places[1:]) if end > earliest) for places in borders]


def _borders(texts: Sequence[str], choice: int) -> list[int]:
    """Where tokens begin and end, in characters from the end of the prompt on; the first is 0 or less."""
    places = [choice - sum(map(len, texts))]
    for text in texts:
        places.append(places[-1] + len(text))
    return places
