"""A step extension may preempt running sequences, whatever the schedule policy is."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import pytest

from sglang_plug import PreemptionPhase, SequenceView, StepExtension
from sglang_plug.engine.scheduling.caller_accounting import CallerAccounting
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug_backends.schedule.callers import FairShare
from sglang_plug_backends.schedule.policies import FirstCome

from .scheduler_bench import Device, expected, finish, make, step, submit

LONG = {"max_new_tokens": 40, "stop_token_ids": ()}

Preempted = tuple[Ordered[SequenceView], Ordered[SequenceView]]


class NewestFirst(StepExtension, PreemptionPhase):
    """Preempts the first running sequence in favour of the last waiting one while ``is_due`` is set."""

    def __init__(self) -> None:
        self.is_due = False
        self.noted_ids: list[str] = []
        self.calls: list[bool] = []

    def queued_or_admitted(self, sequence: SequenceView) -> None:
        self.noted_ids.append(sequence.request.id)

    def preemption_due(self) -> bool:
        return self.is_due

    def preempt(
        self, running: Ordered[SequenceView], waiting: Ordered[SequenceView], *, within_callers: bool
    ) -> Preempted:
        self.calls.append(within_callers)
        self.is_due = False
        return running[:1], waiting[-1:]


class Wrong(NewestFirst):
    def preempt(
        self, running: Ordered[SequenceView], waiting: Ordered[SequenceView], *, within_callers: bool
    ) -> Preempted:
        return waiting[:1], running[:1]


def full(extension: PreemptionPhase | None, policy: Any = None, callers: str = "aaaa") -> tuple[Scheduler, Device]:
    """Return a scheduler with two running sequences and two waiting ones."""
    chosen = FirstCome() if policy is None else policy
    preemption, accounting = (
        Preemption(policy=policy, extension=extension, extension_name="NAME"),
        CallerAccounting(policy, policy),
    )
    scheduler = make(policy=lambda: chosen, preemption=preemption, accounting=accounting, max_running=2)
    device = Device()
    for number, caller in enumerate(callers):
        submit(scheduler, str(number), [10 + number], params=LONG, caller=caller, arrived=float(number))
    step(scheduler, device)
    return scheduler, device


def running(scheduler: Scheduler) -> set[str]:
    return {sequence.request.id for sequence in scheduler.running}


def test_no_sequence_is_preempted_without_an_extension() -> None:
    scheduler, device = full(None)
    for _ in range(20):
        step(scheduler, device)
    assert running(scheduler) == {"0", "1"}


def test_an_extension_preempts_when_preemption_is_due() -> None:
    extension = NewestFirst()
    scheduler, device = full(extension)
    assert extension.noted_ids == ["0", "1", "2", "3", "0", "1"], "queued, then admitted"
    step(scheduler, device)
    assert running(scheduler) == {"0", "1"} and not extension.calls
    extension.is_due = True
    step(scheduler, device)
    assert running(scheduler) == {"1", "3"} and extension.calls == [False]
    assert extension.noted_ids[6:] == ["0", "3"]


def test_outputs_do_not_depend_on_preemption() -> None:
    extension = NewestFirst()
    scheduler, device = full(extension)
    unchanged, other_device = full(None)
    reference = finish(unchanged, other_device)
    outputs: dict[str, list[int]] = {}
    for number in range(1000):
        extension.is_due = number % 5 == 0
        for output in step(scheduler, device) if scheduler.busy else ():
            outputs.setdefault(output.id, []).extend(output.tokens)
    assert len(extension.calls) > 3
    assert outputs == reference and outputs["3"] == expected([13], 40)


def test_a_policy_that_shares_the_running_slots_is_asked_first() -> None:
    extension = NewestFirst()
    scheduler, device = full(extension, FairShare(), callers="abab")
    extension.is_due = True
    step(scheduler, device)
    assert extension.calls == [True], "within callers, because the policy shares the running slots between them"


def test_another_answer_is_an_error_that_names_the_extension() -> None:
    extension = Wrong()
    scheduler, device = full(extension)
    extension.is_due = True
    with pytest.raises(RuntimeError, match=r"^NAME: preempt\(\) must return some of the given running sequences"):
        step(scheduler, device)
