"""Methods to choose the likeliest of several choices from the log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ScoredChoice:
    """A choice and the tokens it adds to the prompt."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probability of each token, given the prompt and the tokens before it."""
    unconditional: tuple[float, ...] = ()
    """Log-probability of each token without the prompt; only for methods that need it."""


@dataclass(frozen=True)
class Decision:
    """The selected choice and how it was selected."""

    choice: str
    meta_info: dict[str, Any]


@dataclass(frozen=True)
class ChoicesMethod:
    """A method to choose."""

    name: str
    scores: Callable[[Sequence[ScoredChoice]], list[float]]
    """Function that scores each choice; the highest score wins, the first of equal ones."""
    needs_unconditional: bool = False

    def decide(self, scored: Sequence[ScoredChoice]) -> Decision:
        """Select a choice."""
        scores = self.scores(scored)
        best = max(range(len(scored)), key=scores.__getitem__)
        meta: dict[str, Any] = {
            "choices_method": self.name,
            "choices": [choice.text for choice in scored],
            "scores": scores,
            "normalized_prompt_logprobs": _means(scored),
            "input_token_logprobs": [list(zip(choice.logprobs, choice.tokens, strict=True)) for choice in scored],
        }
        if self.needs_unconditional:
            meta["unconditional_token_logprobs"] = [list(choice.unconditional) for choice in scored]
        return Decision(scored[best].text, meta)


def _means(scored: Sequence[ScoredChoice]) -> list[float]:
    return [_mean(choice.logprobs) for choice in scored]


def _advantages(scored: Sequence[ScoredChoice]) -> list[float]:
    return [_mean(choice.logprobs) - _mean(choice.unconditional) for choice in scored]


def _greedy(scored: Sequence[ScoredChoice]) -> list[float]:
    """Count the tokens for which each choice stays the best; a choice that ends early continues with its mean.

    Choices are compared by tokens, not by numbers: equal tokens after equal tokens are equally likely, whatever the
    rounding in a batch says.
    """
    survived = [0.0] * len(scored)
    alive = list(range(len(scored)))
    for position in range(max(len(choice.tokens) for choice in scored)):
        rows: dict[tuple[int, ...], list[int]] = {}
        for index in alive:
            tokens = scored[index].tokens
            rows.setdefault((tokens[position],) if position < len(tokens) else (-1, index), []).append(index)
        alive = max(rows.values(), key=lambda group: _at(scored[group[0]], position))
        for index in alive:
            survived[index] += 1
    return survived


def _at(choice: ScoredChoice, position: int) -> float:
    return choice.logprobs[position] if position < len(choice.logprobs) else _mean(choice.logprobs)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


token_length_normalized = ChoicesMethod("token_length_normalized", _means)
"""Selects the choice with the highest mean log-probability."""
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy)
"""Selects the choice that greedy decoding among the choices would produce."""
unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized", _advantages, True)
"""Selects the choice whose probability the prompt increases most."""
