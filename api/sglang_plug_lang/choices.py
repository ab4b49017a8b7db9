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
    given_mean: float | None = None
    """Mean log-probability, where it is known otherwise than from ``logprobs``."""

    @property
    def mean(self) -> float:
        """Mean log-probability of the tokens."""
        return _mean(self.logprobs) if self.given_mean is None else self.given_mean


@dataclass(frozen=True)
class Decision:
    """The selected choice and how it was selected."""

    choice: str
    meta_info: dict[str, Any]

    @property
    def decision(self) -> str:
        """The selected choice, under SGLang's name."""
        return self.choice


@dataclass(frozen=True)
class ChoicesMethod:
    """A method to choose."""

    name: str
    scores: Callable[[Sequence[ScoredChoice]], list[float]]
    """Function that scores each choice; the highest score wins, the first of equal ones."""
    needs_unconditional: bool = False
    details: Callable[[Sequence[ScoredChoice]], dict[str, Any]] = lambda scored: {}
    """Function that returns further facts about the scores."""

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Sequence[Sequence[Any]]],
        output_token_logprobs: object = None,
        unconditional_token_logprobs: Sequence[Sequence[Sequence[Any]]] | None = None,
    ) -> Decision:
        """Select a choice from log-probabilities in the format of ``/generate``, one list for each choice."""
        if self.needs_unconditional and unconditional_token_logprobs is None:
            raise ValueError(f"{self.name} needs unconditional_token_logprobs")
        unconditional = unconditional_token_logprobs or [()] * len(choices)
        rows = zip(choices, normalized_prompt_logprobs, input_token_logprobs, unconditional, strict=True)
        return self.decide(
            [
                ScoredChoice(text, tuple(entry[1] for entry in logprobs), _values(logprobs), _values(alone), mean)
                for text, mean, logprobs, alone in rows
            ]
        )

    def decide(self, scored: Sequence[ScoredChoice]) -> Decision:
        """Select a choice."""
        scores = self.scores(scored)
        best = max(range(len(scored)), key=scores.__getitem__)
        meta: dict[str, Any] = {
            "choices_method": self.name,
            "choices": [choice.text for choice in scored],
            "scores": scores,
            "normalized_prompt_logprobs": _means(scored),
            **self.details(scored),
            "input_token_logprobs": [list(zip(choice.logprobs, choice.tokens, strict=True)) for choice in scored],
        }
        if self.needs_unconditional:
            meta["unconditional_token_logprobs"] = [list(choice.unconditional) for choice in scored]
        return Decision(scored[best].text, meta)


def _means(scored: Sequence[ScoredChoice]) -> list[float]:
    return [choice.mean for choice in scored]


def _advantages(scored: Sequence[ScoredChoice]) -> list[float]:
    return [choice.mean - _mean(choice.unconditional) for choice in scored]


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


def _greedy_details(scored: Sequence[ScoredChoice]) -> dict[str, Any]:
    longest = max(len(choice.tokens) for choice in scored)
    return {"greedy_logprob_matrix": [[_at(choice, position) for position in range(longest)] for choice in scored]}


def _unconditional_details(scored: Sequence[ScoredChoice]) -> dict[str, Any]:
    return {"normalized_unconditional_prompt_logprobs": _advantages(scored)}


def _values(entries: Sequence[Sequence[Any]]) -> tuple[float, ...]:
    """Return log-probabilities; the first token of a text has none, which counts as 0."""
    return tuple(entry[0] or 0.0 for entry in entries)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


class TokenLengthNormalized(ChoicesMethod):
    """Selects the choice with the highest mean log-probability."""

    def __init__(self) -> None:
        super().__init__("token_length_normalized", _means)


class GreedyTokenSelection(ChoicesMethod):
    """Selects the choice that greedy decoding among the choices would produce."""

    def __init__(self) -> None:
        super().__init__("greedy_token_selection", _greedy, details=_greedy_details)


class UnconditionalLikelihoodNormalized(ChoicesMethod):
    """Selects the choice whose probability the prompt increases most."""

    def __init__(self) -> None:
        super().__init__("unconditional_likelihood_normalized", _advantages, True, _unconditional_details)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()
