"""A step during planning: its room for prompts and drafts, and chunks that follow those on the device."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Request, SamplingParams
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.planned_step import PlannedStep, TokenBudget
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug.engine.sequences.sequence import Sequence


class Quadratic:
    """A step budget for the number of query-key products."""

    def __init__(self, room: int) -> None:
        self.room = room

    def tokens(self, start: int) -> int:
        return self.room // (start + 1)

    def add(self, start: int, count: int) -> None:
        self.room -= count * (start + 1)

    def add_drafts(self, start: int, count: int) -> bool:
        if count * (start + 1) > self.room:
            return False
        self.add(start, count)
        return True


def sequence(length: int) -> Sequence:
    return Sequence.of(Request(id="a", tokens=(1,) * length, params=SamplingParams()), 1000)


@given(st.integers(0, 100), st.integers(0, 200), st.lists(st.integers(0, 30), max_size=8))
def test_prompts_stay_within_both_budgets(budget: int, room: int, starts: list[int]) -> None:
    limited, quadratic = TokenBudget(budget, Quadratic(room)), 0
    total = 0
    for start in starts:
        count = max(0, limited.tokens(start))
        limited.add(start, count)
        total, quadratic = total + count, quadratic + count * (start + 1)
    assert total <= budget and quadratic <= room


def test_without_an_extension_the_step_has_its_tokens_and_drafts_always_fit() -> None:
    room = TokenBudget(10)
    assert room.tokens(0) == room.tokens(1000) == 10
    room.add(1000, 8)
    assert room.tokens(0) == 2 and room.add_drafts(5, 100)


@pytest.mark.parametrize(
    ("capacity", "room", "drafts", "fits"),
    [
        (8, None, 3, True),
        (7, None, 3, False),
        (8, TokenBudget(10, Quadratic(3 * 6)), 3, True),
        (8, TokenBudget(10, Quadratic(3 * 6 - 1)), 3, False),
    ],
    ids=["fit", "no slots", "within the budget", "beyond the budget"],
)
def test_drafts_need_slots_and_room(capacity: int, room: TokenBudget | None, drafts: int, fits: bool) -> None:
    pool, decoding = SlotPool(capacity, 1), sequence(5)
    pool.extend(decoding.slots, 5)
    step = PlannedStep([ScheduledChunk(decoding, 1)], pool, 10, room)
    assert step.add_drafts(0, (9,) * drafts) is fits
    (chunk,) = step.chunks
    assert chunk.drafts == ((9,) * drafts if fits else ())
    assert len(decoding.slots) == (5 + drafts if fits else 5) == len(set(decoding.slots))
    assert isinstance(decoding.slots, array)
