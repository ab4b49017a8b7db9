"""The prompt tokens that still fit into a step: those of its token budget, and of a step extension's."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from sglang_plug.contracts.extension.step_budget import PromptBudget, StepBudgetPhase

from .scheduled_chunk import ScheduledChunk


class StepRoom:
    """The prompt tokens that still fit into a step.

    Args:
        budget: most tokens that the step may still have.
        prompt_budget: limits them further; ``None``: nothing does.
    """

    def __init__(self, budget: int, prompt_budget: PromptBudget | None = None) -> None:
        self.budget = budget
        self._prompts = prompt_budget

    def tokens(self, start: int) -> int:
        """Return how many prompt tokens behind ``start`` others the step may have; 0 or less if it is full."""
        if self._prompts is None or self.budget <= 0:
            return self.budget
        return min(self.budget, self._prompts.tokens(start))

    def add(self, start: int, count: int) -> None:
        """Note that the step computes ``count`` prompt tokens behind ``start`` others."""
        self.budget -= count
        if self._prompts is not None:
            self._prompts.add(start, count)

    def add_drafts(self, start: int, count: int) -> bool:
        """Note ``count`` draft tokens behind ``start`` tokens; False if they do not fit."""
        return self._prompts is None or self._prompts.add_drafts(start, count)


def room_beside(step_budget: StepBudgetPhase, budget: int, decoding: Ordered[ScheduledChunk]) -> StepRoom:
    """Return the room for at most ``budget`` prompt tokens beside ``decoding``, the chunks planned so far."""
    return StepRoom(budget, step_budget.prompt_budget(decoding))
