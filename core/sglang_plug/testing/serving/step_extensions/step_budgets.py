"""The number of prompt tokens of steps in the conformance test of step extensions; see ``check_step_extension``."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from sglang_plug.contracts.extension.step_budget import PromptBudget, StepBudgetPhase
from sglang_plug.contracts.extension.views import ChunkView
from sglang_plug.contracts.request import Request
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence

STEP_SECONDS, TOKEN_SECONDS = 0.01, 0.002
"""Durations of the steps of the test: of a step, and of each of its tokens."""
DECODING, LENGTH = 4, 20
"""Sequences that decode while a prompt waits that never gets tokens, and their tokens."""
MAX_STEPS, MAX_CHUNKS = 200, 100
DRAFTS = 3


class CheckedPromptBudget:
    """Passes calls on to the budget of a step, and checks the answers. A ``PromptBudget``."""

    def __init__(self, budget: PromptBudget) -> None:
        self._budget = budget

    def tokens(self, start: int) -> int:
        tokens = self._budget.tokens(start)
        assert isinstance(tokens, int), f"PromptBudget.tokens() must return a whole number, not {tokens!r}"
        return tokens

    def add(self, start: int, count: int) -> None:
        self._budget.add(start, count)

    def add_drafts(self, start: int, count: int) -> bool:
        fits = self._budget.add_drafts(start, count)
        assert isinstance(fits, bool), f"PromptBudget.add_drafts() must return True or False, not {fits!r}"
        return fits


class CheckedStepBudget(StepBudgetPhase):
    """Passes calls on to an extension, and checks the budgets that it makes and what it reports.

    Args:
        step_budget: the extension.
    """

    def __init__(self, step_budget: StepBudgetPhase) -> None:
        self._step_budget = step_budget

    def prompt_budget(self, decoding: Ordered[ChunkView]) -> PromptBudget | None:
        budget = self._step_budget.prompt_budget(decoding)
        return None if budget is None else CheckedPromptBudget(budget)

    def step_computed(self, chunks: Ordered[ChunkView], seconds: float, *, has_prompts: bool) -> None:
        self._step_budget.step_computed(chunks, seconds, has_prompts=has_prompts)


def observe_step(step_budget: StepBudgetPhase, chunks: list[ScheduledChunk]) -> None:
    """Tell an extension how long a step took, before it is committed."""
    seconds = STEP_SECONDS + TOKEN_SECONDS * sum(chunk.width for chunk in chunks)
    step_budget.step_computed(chunks, seconds, has_prompts=any(chunk.prefilling for chunk in chunks))


def check_prompts_advance(step_budget: StepBudgetPhase) -> None:
    """Check that prompts are computed while sequences decode for ever, and that what was planned is counted."""
    decoding = [_decoding(number) for number in range(DECODING)]
    for _ in range(MAX_STEPS):
        budget = step_budget.prompt_budget(decoding)
        if budget is None:
            return
        if budget.tokens(0) > 0:
            _check_is_used_up(budget)
            return
        observe_step(step_budget, decoding)
    raise AssertionError(
        f"prompt_budget() left no token for prompts in {MAX_STEPS} steps with {DECODING} sequences that decode, so no "
        "prompt is computed until these end"
    )


def _check_is_used_up(budget: PromptBudget) -> None:
    for _ in range(MAX_CHUNKS):
        tokens = budget.tokens(0)
        if tokens <= 0:
            budget.add_drafts(LENGTH, DRAFTS)
            return
        budget.add(0, tokens)
    raise AssertionError(f"PromptBudget.tokens() is {tokens} after {MAX_CHUNKS} calls of add() that used up all tokens")


def _decoding(number: int) -> ScheduledChunk:
    """Return the next token of a sequence whose prompt is computed."""
    sequence = Sequence.of(Request(id=f"decoding {number}", tokens=(1,) * LENGTH), 2 * LENGTH)
    sequence.computed, sequence.last_step_len = LENGTH - 1, 1
    return ScheduledChunk(sequence, 1)
