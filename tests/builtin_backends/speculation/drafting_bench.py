"""Drafters whose proposals a test chooses."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from sglang_plug import Drafter, SequenceDrafter
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug_backends.speculation.extension import Speculation

Guess = Callable[[list[int], int], Sequence[int]]
"""A function that returns the proposed tokens after ``tokens``, at most ``max_draft_tokens``."""


class Guessing(SequenceDrafter):
    def __init__(self, owner: GuessingDrafter, prompt: Sequence[int]) -> None:
        self._owner, self.tokens = owner, list(prompt)
        self.over = False

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        assert not self.over
        self.tokens += tokens
        self._owner.limits.append(max_draft_tokens)
        return self._owner.guess(self.tokens, max_draft_tokens)

    def end(self, tokens: Sequence[int]) -> None:
        assert not self.over, "ended twice"
        self.over = True
        self._owner.ended.append([*self.tokens, *tokens])


class GuessingDrafter(Drafter):
    """A drafter that calls ``guess``, and records its limits, its salts and the finished sequences."""

    def __init__(self, guess: Guess) -> None:
        self.guess = guess
        self.limits: list[int] = []
        self.ended: list[list[int]] = []
        self.salts: list[str] = []

    def begin(self, prompt: Sequence[int], *, salt: str) -> SequenceDrafter:
        self.salts.append(salt)
        return Guessing(self, prompt)


def guess_with_errors(next_token: Callable[[list[int]], int], fraction: float, seed: int, vocabulary: int) -> Guess:
    """Return a guess that follows the model, with wrong tokens at the rate ``fraction`` and of random length."""
    generator = random.Random(seed)

    def guess(tokens: list[int], max_draft_tokens: int) -> Sequence[int]:
        drafts: list[int] = []
        for _ in range(generator.randint(0, max_draft_tokens)):
            wrong = generator.random() < fraction
            drafts.append(generator.randrange(vocabulary) if wrong else next_token(tokens + drafts))
        return drafts

    return guess


def use_extension(scheduler: Scheduler, extension: Speculation) -> None:
    """Install ``extension`` as the only extension of ``scheduler``."""
    points = extension_points({"speculation": extension})
    scheduler.requests, scheduler.planning = points.requests, points.planning


def speculate(scheduler: Scheduler, guess: Guess, **options: Any) -> GuessingDrafter:
    """Install a ``GuessingDrafter`` in ``scheduler``, and return it."""
    drafter = GuessingDrafter(guess)
    options = {"name": "the drafter", "max_draft_tokens": 4, "step_tokens": 64, "vocabulary": 1000, **options}
    use_extension(scheduler, Speculation(drafter, **options))
    return drafter
