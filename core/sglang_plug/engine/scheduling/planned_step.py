"""A step that is planned but not launched yet; step extensions can read and change it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang_plug.engine.memory.kv_slots import SlotPool

from .scheduled_chunk import ScheduledChunk
from .step_room import StepRoom


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
