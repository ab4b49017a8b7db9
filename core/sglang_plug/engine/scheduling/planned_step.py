"""A step while it is planned: room for prompt tokens, draft tokens, and chunks that follow those on the device."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

from sglang_plug.contracts.extension.memory_phases import StatePhase
from sglang_plug.contracts.extension.step_budget import PromptBudget, StepBudgetPhase
from sglang_plug.engine.memory.kv_slots import SlotPool

from .scheduled_chunk import ScheduledChunk
from .sequence import Sequence


class StepRoom:
    """The prompt tokens that still fit into a step.

    Args:
        budget: maximum number of tokens that the step may still have.
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


def prompt_room(step_budget: StepBudgetPhase, budget: int, decoding: Ordered[ScheduledChunk]) -> StepRoom:
    """Return the room for at most ``budget`` prompt tokens in a step with ``decoding``, the chunks planned so far."""
    return StepRoom(budget, step_budget.prompt_budget(decoding))


@dataclass(slots=True)
class PlannedStep:
    """The chunks of a step, to which draft tokens may be added. A ``StepPlan``."""

    chunks: list[ScheduledChunk]
    """The list is changed in place."""
    pool: SlotPool
    budget: int
    room: StepRoom | None = None
    """Limits the drafts of a step in which prompts are computed."""

    def add_drafts(self, index: int, drafts: tuple[int, ...]) -> bool:
        """Add draft tokens to a chunk; see ``StepPlan.add_drafts``."""
        sequence = self.chunks[index].sequence
        length = len(sequence.tokens) + len(drafts)
        if self.pool.missing(len(sequence.slots), length) > self.pool.free:
            return False
        if self.room is not None and not self.room.add_drafts(len(sequence.tokens), len(drafts)):
            return False
        self.pool.extend(sequence.slots, length)
        self.chunks[index] = replace(self.chunks[index], drafts=drafts)
        return True


def continued(
    chunks: Ordered[ScheduledChunk],
    budget: int,
    make_room: Callable[[int, list[ScheduledChunk]], StepRoom],
    plan: Callable[[Sequence, int, int], ScheduledChunk],
    states: Ordered[StatePhase],
    has_prompts: bool,
) -> list[ScheduledChunk]:
    """Plan the tokens that come after each of ``chunks``, under the same limits as any other step.

    Args:
        chunks: chunks on the device whose sequences continue.
        budget: maximum number of tokens of the step.
        make_room: returns what limits the prompt tokens of a step that also decodes.
        plan: makes a chunk of so many tokens of a sequence, which follow so many that are on the device.
        states: extensions with states of sequences, which may shorten a chunk.
        has_prompts: False if all sequences decode.
    """
    planned = list[ScheduledChunk]()
    room = None
    if has_prompts:
        chunks = sorted(chunks, key=lambda chunk: not chunk.complete)  # sequences that decode come first
    for chunk in chunks:
        sequence = chunk.sequence
        if room is None and has_prompts and not chunk.complete:
            room = make_room(budget, planned)
        max_tokens = budget if room is None else room.tokens(chunk.end)
        count = sequence.count(chunk.end, max_tokens, states, tokens=len(sequence.tokens) + chunk.complete)
        if count > 0:
            planned.append(plan(sequence, count, chunk.count))
            budget -= count
            if room is not None:
                room.add(chunk.end, count)
    return planned
