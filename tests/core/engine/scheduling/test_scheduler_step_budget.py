"""A step extension sets the number of prompt tokens of a step; without one, the token budget is the only limit."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_plug import ChunkView, PlanningPhase, StepBudgetPhase, StepExtension, StepPlan
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk
from sglang_plug_backends.schedule.time_slices import TURN_SECONDS, TimeSlices

from .scheduler_bench import Clock, Device, finish, make, submit

FEW = 3


class Budget:
    """A budget of ``FEW`` prompt tokens and as many draft tokens."""

    def __init__(self) -> None:
        self.remaining = self.drafts = FEW

    def tokens(self, start: int) -> int:
        return self.remaining

    def add(self, start: int, count: int) -> None:
        self.remaining -= count

    def add_drafts(self, start: int, count: int) -> bool:
        self.drafts -= count
        return self.drafts >= 0


class FewWhileDecoding(StepExtension, StepBudgetPhase):
    """A step extension with a fixed token budget for steps with decoding sequences."""

    def prompt_budget(self, decoding: Sequence[ChunkView]) -> Budget | None:
        return Budget() if decoding else None


class DraftsOfTwo(StepExtension, PlanningPhase):
    """A step extension that adds two drafts to each decoding sequence if the step has room."""

    def __init__(self) -> None:
        self.added: list[bool] = []

    def plan(self, step: StepPlan) -> None:
        decoding = [index for index, chunk in enumerate(step.chunks) if not chunk.prefilling]
        self.added = [step.add_drafts(index, (1, 2)) for index in decoding]


def decoding(scheduler: Scheduler, device: Device, count: int) -> None:
    for number in range(count):
        submit(scheduler, f"decoding {number}", [10 + number], params={"max_new_tokens": 50, "stop_token_ids": ()})
    StepCommitter(scheduler).commit(chunks := scheduler.plan(), device.run(chunks))


def prompt_tokens(chunks: list[ScheduledChunk]) -> int:
    return sum(chunk.count for chunk in chunks if chunk.prefilling)


def test_the_token_budget_is_the_only_limit_without_an_extension() -> None:
    scheduler, device = make(), Device()
    decoding(scheduler, device, 2)
    submit(scheduler, "prompt", list(range(30)))
    assert prompt_tokens(scheduler.plan()) == 14


def test_an_extension_limits_the_prompts_while_sequences_decode() -> None:
    scheduler, device = make(extensions=extension_points({"few": FewWhileDecoding()})), Device()
    submit(scheduler, "alone", list(range(20)))
    assert prompt_tokens(chunks := scheduler.plan()) == 16
    StepCommitter(scheduler).commit(chunks, device.run(chunks))
    finish(scheduler, device)
    decoding(scheduler, device, 2)
    for number in range(2):
        submit(scheduler, f"prompt {number}", list(range(50 + number, 70 + number)))
    for _ in range(3):
        chunks = scheduler.plan()
        assert [chunk.count for chunk in chunks] == [1, 1, FEW]
        StepCommitter(scheduler).commit(chunks, device.run(chunks))
    finish(scheduler, device)


def test_drafts_get_what_the_extension_leaves() -> None:
    drafts = DraftsOfTwo()
    points = extension_points({"few": FewWhileDecoding(), "drafts": drafts})
    scheduler, device = make(extensions=points), Device()
    decoding(scheduler, device, 3)
    submit(scheduler, "prompt", list(range(20)))
    scheduler.plan()
    assert drafts.added == [True, False, False]


def test_sequences_that_decode_are_not_preempted_while_prompts_wait_for_tokens_of_steps() -> None:
    clock = Clock()
    points = extension_points({"few": FewWhileDecoding()})
    preemption = Preemption(clock, extension=TimeSlices(clock))
    scheduler, device = make(extensions=points, preemption=preemption), Device()
    decoding(scheduler, device, 3)
    first = list(scheduler.running)
    for number in range(2):
        submit(scheduler, f"prompt {number}", list(range(50 + number, 90 + number)))
    while scheduler.waiting:
        clock.seconds += 2 * TURN_SECONDS
        chunks = scheduler.plan()
        assert scheduler.running[:3] == first
        StepCommitter(scheduler).commit(chunks, device.run(chunks))
    finish(scheduler, device)
