"""The chunks of a step that follows one on the device."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

from sglang_plug.contracts.extension.memory_phases import StatePhase

from .scheduled_chunk import ScheduledChunk
from .sequence import Sequence
from .step_room import StepRoom


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
        budget: most tokens of the step.
        make_room: returns what limits the prompt tokens beside chunks that decode.
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
        most = budget if room is None else room.tokens(chunk.end)
        count = sequence.count(chunk.end, most, states, tokens=len(sequence.tokens) + chunk.complete)
        if count > 0:
            planned.append(plan(sequence, count, chunk.count))
            budget -= count
            if room is not None:
                room.add(chunk.end, count)
    return planned
