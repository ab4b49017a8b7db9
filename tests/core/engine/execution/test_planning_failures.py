"""Steps that cannot be planned because a step extension raises an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import (
    ChunkView,
    PlanningPhase,
    PreemptionPhase,
    PromptBudget,
    SequenceView,
    StatePhase,
    StepBudgetPhase,
    StepExtension,
    StepPlan,
)
from sglang_plug.engine.execution.pipeline import MAX_CONSECUTIVE_FAILURES
from sglang_plug.engine.messages.api_messages import Pause, Resume
from tests.core.engine.test_loop import Bench


class Faulty(StepExtension, PlanningPhase, StepBudgetPhase, PreemptionPhase, StatePhase):
    """A step extension that raises an error in one method while ``fails`` is set."""

    def __init__(self, method: str) -> None:
        self.method, self.fails = method, False
        self.states = 0

    def _fail(self, method: str) -> None:
        if self.fails and method == self.method:
            raise KeyError(f"a fault in {method}")

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> list[SequenceView]:
        self._fail("order")
        return waiting

    def plan(self, step: StepPlan) -> None:
        self._fail("plan")

    def waits_for(self, chunks: Sequence[ChunkView]) -> bool:
        self._fail("waits_for")
        return False

    def prompt_budget(self, decoding: Sequence[ChunkView]) -> PromptBudget | None:
        self._fail("prompt_budget")
        return None

    def queued_or_admitted(self, sequence: SequenceView) -> None:
        self._fail("queued_or_admitted")

    def preemption_due(self) -> bool:
        self._fail("preemption_due")
        return self.method == "preempt"

    def preempt(self, running: Any, waiting: Any, *, within_callers: bool) -> tuple[list[Any], list[Any]]:
        self._fail("preempt")
        return [], []

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        self.states += 1
        return True

    def planned(self, sequence: SequenceView, end: int) -> None:
        self._fail("planned")

    def release(self, sequence: SequenceView, keep: bool) -> int | None:
        self.states -= 1
        return None


def with_waiting_requests(method: str, *, overlap: bool = True) -> tuple[Bench, Faulty]:
    """Return a loop with two running requests and a waiting one; for ``order`` with one, so that there is room to
    admit."""
    faulty = Faulty(method)
    bench = Bench(overlap=overlap, extensions={"faulty": faulty}, max_queued=9)
    for id in ("a", "b")[: 1 if method == "order" else 2]:
        bench.submit(id, params={"max_new_tokens": 20})
    bench.loop.step()
    bench.loop.step()
    bench.submit("c", tokens=[1] * 20, params={"max_new_tokens": 20})
    return bench, faulty


PLANNING = ("order", "plan", "prompt_budget", "preemption_due", "preempt", "planned")


@pytest.mark.parametrize(
    ("method", "overlap"),
    [*((method, overlap) for method in PLANNING for overlap in (False, True)), ("waits_for", True)],
)
def test_a_step_that_cannot_be_planned_ends_the_requests_and_not_the_engine(method: str, overlap: bool) -> None:
    bench, faulty = with_waiting_requests(method, overlap=overlap)
    faulty.fails = True
    bench.run()
    faulty.fails = False
    running = ("a",) if method == "order" else ("a", "b")
    for id in ("c",) if overlap and method != "waits_for" else (*running, "c"):  # steps ahead call fewer methods
        reason, status, message = bench.end(id)
        assert (reason, status) == ("error", 500), id
        assert message.startswith("the step could not be planned: ") and f"a fault in {method}" in message
    assert all(bench.end(id) for id in running) and not bench.loop.busy and faulty.states == 0
    assert bench.scheduler.accounts()["running"] == 0
    bench.submit("next")
    bench.run()
    assert bench.tokens("next") == [5] * 3


class FailsToAcquire(StepExtension, StatePhase):
    """A step extension that raises an error for the request with the id ``fails``."""

    def acquire(self, sequence: SequenceView, start: int, cached: int) -> bool:
        if sequence.request.id == "fails":
            raise KeyError("a fault in acquire")
        return True


def test_what_was_allocated_for_a_sequence_that_could_not_be_planned_is_freed() -> None:
    faulty = Faulty("acquire")
    bench = Bench(extensions={"first": faulty, "second": FailsToAcquire()})
    bench.submit("cached")
    bench.run()
    cached = bench.scheduler.cache.size
    bench.submit("fails")
    bench.run()
    assert bench.end("fails")[:2] == ("error", 500) and faulty.states == 0
    assert bench.scheduler.cache.evictable == bench.scheduler.cache.size == cached > 0


def test_a_paused_request_continues_after_a_step_that_could_not_be_planned() -> None:
    bench, faulty = with_waiting_requests("plan", overlap=False)
    bench.inbox.messages.append(Pause(("a",)))
    bench.loop.step()
    faulty.fails = True
    bench.run()
    faulty.fails = False
    assert bench.end("b")[:2] == ("error", 500)
    bench.inbox.messages.append(Resume(("a",)))
    bench.run()
    assert bench.tokens("a") == [5] * 20 and bench.end("a")[0] == "length"


def test_steps_that_can_never_be_planned_end_the_engine() -> None:
    bench, faulty = with_waiting_requests("plan", overlap=False)
    faulty.fails = True
    with pytest.raises(KeyError, match="a fault in plan"):
        for number in range(MAX_CONSECUTIVE_FAILURES):
            bench.submit(str(number))
            bench.run()


def test_a_request_that_cannot_be_queued_ends_alone() -> None:
    bench, faulty = with_waiting_requests("queued_or_admitted")
    faulty.fails = True
    bench.loop.step()
    faulty.fails = False
    assert bench.end("c")[:2] == ("error", 500) and "a fault in queued_or_admitted" in bench.end("c")[2]
    bench.run()
    assert bench.tokens("a") == bench.tokens("b") == [5] * 20
