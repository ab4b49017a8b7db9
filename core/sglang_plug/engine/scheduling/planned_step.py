"""A step while it is planned: its token budget, draft tokens, and chunks that follow those on the device."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from sglang_plug.contracts.extension.memory_phases import StatePhase
from sglang_plug.contracts.extension.step_budget import PromptBudget, StepBudgetPhase
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence


class TokenBudget:
    """The number of tokens that a step may still add, and how many of them may be prompt tokens.

    Args:
        remaining: maximum number of tokens that the step may still add.
        prompts: the budget of prompt tokens; ``None``: only ``remaining`` limits them.
    """

    def __init__(self, remaining: int, prompts: PromptBudget | None = None) -> None:
        self.remaining = remaining
        self._prompts = prompts

    def tokens(self, start: int) -> int:
        """Return how many prompt tokens the step may add after ``start`` computed ones; 0 or less if it is full."""
        if self._prompts is None or self.remaining <= 0:
            return self.remaining
        return min(self.remaining, self._prompts.tokens(start))

    def add(self, start: int, count: int) -> None:
        """Record that the step computes ``count`` prompt tokens after ``start`` computed ones."""
        self.remaining -= count
        if self._prompts is not None:
            self._prompts.add(start, count)

    def add_drafts(self, start: int, count: int) -> bool:
        """Record ``count`` draft tokens after ``start`` tokens; return False if they do not fit."""
        return self._prompts is None or self._prompts.add_drafts(start, count)


@dataclass(slots=True)
class PlannedStep:
    """The chunks of a step, to which draft tokens may be added. A ``StepPlan``."""

    chunks: list[ScheduledChunk]
    """The list is changed in place."""
    pool: SlotPool
    budget: int
    token_budget: TokenBudget | None = None
    """Limits the drafts of a step in which prompts are computed."""

    def add_drafts(self, index: int, drafts: tuple[int, ...]) -> bool:
        """Add draft tokens to a chunk; see ``StepPlan.add_drafts``."""
        sequence = self.chunks[index].sequence
        length = len(sequence.tokens) + len(drafts)
        if self.pool.missing(len(sequence.slots), length) > self.pool.free:
            return False
        if self.token_budget is not None and not self.token_budget.add_drafts(len(sequence.tokens), len(drafts)):
            return False
        self.pool.extend(sequence.slots, length)
        self.chunks[index] = replace(self.chunks[index], drafts=drafts)
        return True


def plan_next_chunks(
    chunks: Ordered[ScheduledChunk],
    remaining: int,
    plan: Callable[[Sequence, int, int], ScheduledChunk],
    step_budget: StepBudgetPhase,
    states: Ordered[StatePhase],
    has_prompts: bool,
) -> list[ScheduledChunk]:
    """Plan the tokens that come after each of ``chunks``, under the same limits as any other step.

    Args:
        chunks: chunks on the device whose sequences continue.
        remaining: maximum number of tokens of the step.
        plan: makes a chunk of a sequence, of so many tokens, after so many that are on the device.
        step_budget: limits the prompt tokens of a step that also decodes.
        states: may shorten a chunk.
        has_prompts: False if all sequences decode.
    """
    planned = list[ScheduledChunk]()
    budget = None
    if has_prompts:
        chunks = sorted(chunks, key=lambda chunk: not chunk.complete)  # sequences that decode come first
    for chunk in chunks:
        sequence = chunk.sequence
        if budget is None and has_prompts and not chunk.complete:
            budget = TokenBudget(remaining, step_budget.prompt_budget(planned))
        max_tokens = remaining if budget is None else budget.tokens(chunk.end)
        count = sequence.count(chunk.end, max_tokens, states, tokens=len(sequence.tokens) + chunk.complete)
        if count > 0:
            planned.append(plan(sequence, count, chunk.count))
            remaining -= count
            if budget is not None:
                budget.add(chunk.end, count)
    return planned
