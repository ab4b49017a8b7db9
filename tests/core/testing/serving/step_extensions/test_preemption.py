"""The conformance test finds faults of extensions that preempt running sequences."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_plug import PreemptionPhase, SequenceView, StepExtension
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.schedule.time_slices import TimeSlices

Preempted = tuple[Sequence[SequenceView], Sequence[SequenceView]]
EVERY = 3


def test_time_slices_keep_the_contract() -> None:
    seconds = iter(range(1_000_000))
    check_step_extension(TimeSlices(lambda: float(next(seconds))))


class OldestForNewest(StepExtension, PreemptionPhase):
    """A correct extension, which preempts in every ``EVERY``-th call of ``preemption_due``."""

    def __init__(self) -> None:
        self.calls = self.preempted = 0

    def preemption_due(self) -> bool:
        self.calls += 1
        return self.calls % EVERY == 0

    def preempt(
        self, running: Sequence[SequenceView], waiting: Sequence[SequenceView], *, within_callers: bool
    ) -> Preempted:
        self.preempted += 1
        return self.chosen(running, waiting)

    def chosen(self, running: Sequence[SequenceView], waiting: Sequence[SequenceView]) -> Preempted:
        return running[:1], waiting[-1:]


def test_another_way_to_preempt_keeps_the_contract() -> None:
    extension = OldestForNewest()
    check_step_extension(extension)
    assert extension.preempted > 3


class Twice(OldestForNewest):
    def chosen(self, running: Sequence[SequenceView], waiting: Sequence[SequenceView]) -> Preempted:
        return [*running[:1], *running[:1]], waiting[:1]


class Reversed(OldestForNewest):
    def chosen(self, running: Sequence[SequenceView], waiting: Sequence[SequenceView]) -> Preempted:
        return running[:1], running[-1:]


class TakesOut(OldestForNewest):
    def chosen(self, running: Sequence[SequenceView], waiting: Sequence[SequenceView]) -> Preempted:
        assert isinstance(waiting, list)
        return running[:1], [waiting.pop()]


class SaysNothing(OldestForNewest):
    def preemption_due(self) -> bool:
        return None  # type: ignore[return-value]


class Always(OldestForNewest):
    """Preempts all sequences in every step, so that no prompt is computed to its end."""

    def preemption_due(self) -> bool:
        return True

    def chosen(self, running: Sequence[SequenceView], waiting: Sequence[SequenceView]) -> Preempted:
        return running, waiting


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (Twice(), r"preempt\(\) names one of the preempted sequences twice"),
        (Reversed(), r"preempt\(\) names another sequence among the waiting sequences that are admitted first"),
        (TakesOut(), r"preempt\(\) changed the lists that it was given"),
        (SaysNothing(), r"preemption_due\(\) must return True or False, not None"),
        (Always(), "the requests do not end"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension)
