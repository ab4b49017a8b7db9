"""The prompt tokens that fit into a step of a given time."""

from __future__ import annotations

from .step_time_model import StepTimeModel, StepWork

MIN_TOKENS = 16
"""Prompt tokens that a step may always have, so that prompts advance whatever the time is."""
FIRST_TOKENS = 64
"""Maximum number of prompt tokens of a step that also decodes, before the duration of such a step is known."""
GROWTH = 4
"""A step has at most this many times the prompt tokens of the largest step observed so far."""


class TimedBudget:
    """The prompt tokens that a step of a given time may still have. A ``PromptBudget``.

    Args:
        work: what is planned so far.
        model: predicts durations.
        seconds: time of the step.
        min_tokens: prompt tokens that the step may have whatever the time is.
    """

    def __init__(self, work: StepWork, model: StepTimeModel, seconds: float, min_tokens: int = MIN_TOKENS) -> None:
        self._work, self._model, self._seconds, self._min_tokens = work, model, seconds, min_tokens
        self._full = False

    def tokens(self, start: int) -> int:
        """Return how many prompt tokens after ``start`` others the step may have; see ``PromptBudget.tokens``."""
        min_tokens = 0 if self._work.prefill_tokens else self._min_tokens
        if self._full:
            return min_tokens
        bound = GROWTH * self._model.largest_prefill if self._model.predicts_prefill else FIRST_TOKENS
        room = max(FIRST_TOKENS, bound) - self._work.prefill_tokens
        if self._model.predicts_prefill:
            room = int(min(room, self._model.prefill_tokens(self._work, start, self._seconds)))
        self._full = room < MIN_TOKENS
        return max(min_tokens, room)

    def add(self, start: int, count: int) -> None:
        """Note that the step computes ``count`` prompt tokens after ``start`` others."""
        self._work.add_prefill(start, count)

    def add_drafts(self, start: int, count: int) -> bool:
        """Note ``count`` draft tokens after ``start`` others; False if the prompts of the step leave no room for them.

        A step without prompts is not limited: drafts are there to make it worth its time.
        """
        if not self._work.prefill_tokens:
            return True
        if self._model.prefill_tokens(self._work, start, self._seconds) < count:
            return False
        self._work.add_drafts(start, count)
        return True
