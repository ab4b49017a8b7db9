"""Which of several choices the model finds most likely, from the log-probabilities of their tokens."""

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
    """Of each token, given the prompt and the tokens before it."""
    unconditional: tuple[float, ...] = ()
    """Of each token, without the prompt; only for methods that ask for it."""


@dataclass(frozen=True)
class Decision:
    """The choice that was made and how."""

    choice: str
    meta_info: dict[str, Any]


@dataclass(frozen=True)
class ChoicesMethod:
    """A way to choose."""

    name: str
    scores: Callable[[Sequence[ScoredChoice]], list[float]]
    """One for each choice; the highest wins, the first of equals."""
    needs_unconditional: bool = False

    def decide(self, scored: Sequence[ScoredChoice]) -> Decision:
        """Make the choice."""
        scores = self.scores(scored)
        best = max(range(len(scored)), key=scores.__getitem__)
        meta: dict[str, Any] = {
            "choices_method": self.name,
            "choices": [one.text for one in scored],
            "scores": scores,
            "normalized_prompt_logprobs": _means(scored),
            "input_token_logprobs": [list(zip(one.logprobs, one.tokens, strict=True)) for one in scored],
        }
        if self.needs_unconditional:
            meta["unconditional_token_logprobs"] = [list(one.unconditional) for one in scored]
        return Decision(scored[best].text, meta)


def _means(scored: Sequence[ScoredChoice]) -> list[float]:
    return [_mean(one.logprobs) for one in scored]


def _advantages(scored: Sequence[ScoredChoice]) -> list[float]:
    return [_mean(one.logprobs) - _mean(one.unconditional) for one in scored]


def _greedy(scored: Sequence[ScoredChoice]) -> list[float]:
    """How many tokens each choice survives, best token first; a choice that ends early goes on with its mean.

    Choices are told apart by tokens, not by numbers: equal tokens after equal tokens are equally likely, whatever
    a batch's rounding says.
    """
    survived = [0.0] * len(scored)
    alive = list(range(len(scored)))
    for position in range(max(len(one.tokens) for one in scored)):
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
"""The highest mean log-probability of its tokens."""
greedy_token_selection = ChoicesMethod("greedy_token_selection", _greedy)
"""The choice that greedy decoding among the choices would end in."""
unconditional_likelihood_normalized = ChoicesMethod("unconditional_likelihood_normalized", _advantages, True)
"""The choice that the prompt makes more likely by most."""
