"""Callers that share an engine: their accounts, the order of running prompts, and preemption."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import PlanningPhase, SequenceView, StepExtension, TokenUsage, Waiting
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.scheduling.caller_accounting import SHORT_STEP_DIVISOR, CallerAccounting
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.preemption import RETRY_SECONDS, RETRY_STEPS, Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.callers import FairShare
from sglang_plug_backends.schedule.policies import EarliestDeadline, FirstCome
from sglang_plug_backends.schedule.time_slices import TURN_SECONDS, TimeSlices

from .scheduler_bench import Clock, Device, expected, finish, make, step, submit

LONG = {"max_new_tokens": 400, "stop_token_ids": ()}


class Recorder(FairShare):
    """Fair sharing that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def activated(self, caller: str, weight: float) -> None:
        self.calls.append((caller, weight))
        super().activated(caller, weight)

    def deactivated(self, caller: str) -> None:
        self.calls.append(caller)
        super().deactivated(caller)

    def charge(self, usage: Ordered[TokenUsage]) -> None:
        assert usage
        self.calls += usage
        super().charge(usage)

    def used(self, caller: str) -> tuple[int, int]:
        charges = [call for call in self.calls if isinstance(call, TokenUsage) and call.caller == caller]
        return sum(charge.computed for charge in charges), sum(charge.generated for charge in charges)


def shared(policy: Any = None, clock: Clock | None = None, **options: Any) -> Scheduler:
    """Return a scheduler whose policy shares the engine between callers."""
    policy = FairShare() if policy is None else policy
    clock = clock or Clock()
    accounting = policy if hasattr(policy, "charge") else None
    options = {"capacity": 8000, "max_running": 4, "chunk_size": 64, **options}
    return make(
        policy=lambda: policy,
        preemption=Preemption(clock, policy, extension=TimeSlices(clock)),
        accounting=CallerAccounting(accounting, policy, options.pop("weights", None)),
        **options,
    )


def prompt(caller: int, number: int, length: int) -> list[int]:
    return [caller * 1000 + number] * length


def test_callers_are_charged_once_for_what_they_use() -> None:
    policy = Recorder()
    scheduler, device = shared(policy), Device()
    submit(scheduler, "a", prompt(1, 0, 100), caller="a", params={"max_new_tokens": 6, "stop_token_ids": ()})
    outputs = finish(scheduler, device)
    assert policy.used("a") == (100, len(outputs["a"]))
    assert (policy.calls[0], policy.calls[-1]) == (("a", 1.0), "a")


def test_tokens_from_the_prefix_cache_are_not_charged() -> None:
    policy = Recorder()
    scheduler, device = shared(policy), Device()
    submit(scheduler, "a", prompt(1, 0, 100), caller="a", params={"max_new_tokens": 1})
    finish(scheduler, device)
    submit(scheduler, "b", [*prompt(1, 0, 100), *prompt(2, 0, 20)], caller="b", params={"max_new_tokens": 1})
    finish(scheduler, device)
    assert policy.used("b") == (20, 1)


@settings(max_examples=30, deadline=None)
@given(capacity=st.integers(40, 120), lengths=st.lists(st.integers(1, 20), min_size=2, max_size=8))
def test_tokens_that_are_computed_again_are_not_charged_again(capacity: int, lengths: list[int]) -> None:
    policy = Recorder()
    scheduler, device = shared(policy, cache=NoCache, capacity=capacity), Device()
    for number, length in enumerate(lengths):
        params = {"max_new_tokens": 20, "stop_token_ids": ()}
        submit(scheduler, str(number), prompt(number % 2, number, length), caller=str(number % 2), params=params)
    outputs = finish(scheduler, device)
    for caller in "01":
        own = [number for number in range(len(lengths)) if str(number % 2) == caller]
        used = sum(lengths[number] for number in own), sum(len(outputs[str(number)]) for number in own)
        assert policy.used(caller) == used


def test_a_policy_hears_of_the_end_of_each_callers_last_request() -> None:
    policy = Recorder()
    scheduler, device = shared(policy, weights={"a": 3.0}), Device()
    for id in ("first", "second"):
        submit(scheduler, id, prompt(1, 0, 10), caller="a", params=LONG)
    step(scheduler, device)
    scheduler.abort("first")
    assert "a" not in policy.calls
    scheduler.pause("second")
    scheduler.abort("second")
    assert (policy.calls[0], policy.calls[-1]) == (("a", 3.0), "a")


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    capacity=st.integers(60, 300),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=16),
)
def test_one_caller_is_served_as_without_sharing(seed: int, capacity: int, lengths: list[int]) -> None:
    steps = []
    for policy in (FirstCome(), FairShare()):
        clock, device = Clock(), Device()
        if isinstance(policy, FairShare):
            scheduler = shared(policy, clock, capacity=capacity)
        else:
            options: dict[str, Any] = {"capacity": capacity, "max_running": 4, "chunk_size": 64}
            scheduler = make(policy=FirstCome, preemption=Preemption(clock, extension=TimeSlices(clock)), **options)
        for number, length in enumerate(lengths):
            params = {"max_new_tokens": 1 + (seed * number) % 30}
            submit(scheduler, str(number), prompt(0, number % 3, length), params=params, arrived=float(number))
        planned = []
        while scheduler.busy:
            clock.seconds += 0.7
            chunks = scheduler.plan()
            planned.append([(chunk.sequence.request.id, chunk.start, chunk.count) for chunk in chunks])
            StepCommitter(scheduler).commit(chunks, device.run(chunks))
        steps.append(planned)
    assert steps[0] == steps[1]


@pytest.mark.parametrize("cache", [RadixCache, NoCache])
def test_an_interactive_prompt_overtakes_running_and_waiting_prompts_of_a_heavy_caller(cache: Any) -> None:
    scheduler, device = shared(cache=cache, max_running=8), Device()
    for number in range(20):
        submit(scheduler, f"heavy {number}", prompt(1, number, 300), caller="heavy", arrived=float(number))
    for _ in range(3):
        step(scheduler, device)
    submit(scheduler, "interactive", prompt(2, 0, 30), caller="interactive", arrived=100.0)
    computed = device.computed
    outputs = step(scheduler, device)
    assert [output.id for output in outputs if output.tokens] == ["interactive"]
    assert device.computed - computed <= 30 + scheduler.chunk_size // SHORT_STEP_DIVISOR
    finish(scheduler, device)


def test_a_long_interactive_prompt_gets_the_budget_before_running_prompts_of_a_heavy_caller() -> None:
    scheduler, device = shared(max_running=8), Device()
    for number in range(20):
        submit(scheduler, f"heavy {number}", prompt(1, number, 300), caller="heavy", arrived=float(number))
    for _ in range(3):
        step(scheduler, device)
    submit(scheduler, "interactive", prompt(2, 0, 150), caller="interactive", arrived=100.0)
    steps = 1
    while not any(output.id == "interactive" for output in step(scheduler, device)):
        steps += 1
    assert steps <= 2 * 3, "the prompt needs three steps on an idle engine, and gets every other step"


def test_an_interactive_request_preempts_a_sequence_of_a_heavy_caller_at_once() -> None:
    scheduler, device = shared(chunk_size=200), Device()
    for number in range(12):
        submit(scheduler, f"heavy {number}", prompt(1, number, 10), caller="heavy", params=LONG, arrived=float(number))
    for _ in range(5):
        step(scheduler, device)
    submit(scheduler, "interactive", [5], caller="interactive", params={"max_new_tokens": 2}, arrived=100.0)
    assert [output.tokens for output in step(scheduler, device) if output.id == "interactive"]
    callers = [sequence.caller for sequence in scheduler.running]
    assert (callers.count("heavy"), callers.count("interactive")) == (3, 1)
    for _ in range(3):
        step(scheduler, device)
    assert [sequence.caller for sequence in scheduler.running] == ["heavy"] * 4


def test_callers_preempt_each_other_until_each_has_its_fair_share_and_then_no_more() -> None:
    scheduler, device = shared(chunk_size=200, weights={"b": 3.0}), Device()
    for caller in ("a", "b"):
        for number in range(8):
            key = f"{caller} {number}"
            submit(scheduler, key, prompt(ord(caller), number, 5), caller=caller, params=LONG, arrived=float(number))
        step(scheduler, device)
    step(scheduler, device)
    held = list(scheduler.running)
    assert sorted(sequence.caller for sequence in held) == ["a", "b", "b", "b"]
    for _ in range(20):
        step(scheduler, device)
    assert scheduler.running == held


def test_an_interactive_request_gets_kv_slots_of_a_heavy_caller() -> None:
    clock = Clock()
    scheduler, device = shared(clock=clock, capacity=400, max_running=16, chunk_size=200), Device()
    for number in range(12):
        submit(scheduler, f"heavy {number}", prompt(1, number, 60), caller="heavy", params=LONG, arrived=float(number))
    for _ in range(10):
        step(scheduler, device)
    submit(scheduler, "interactive", prompt(2, 0, 60), caller="interactive", params={"max_new_tokens": 2}, arrived=99.0)
    steps = 1
    while not any(output.id == "interactive" for output in step(scheduler, device)):
        clock.seconds += RETRY_SECONDS
        steps += 1
    assert steps <= 8
    finish(scheduler, device)


class OneOfEachCaller(StepExtension, PlanningPhase):
    """A policy that admits a sequence only while no other sequence of its caller runs."""

    def __init__(self) -> None:
        self.calls = 0

    def order(self, waiting: list[SequenceView], running: Ordered[SequenceView]) -> list[SequenceView]:
        self.calls += 1
        callers = {sequence.request.caller for sequence in running}
        return [sequence for sequence in waiting if sequence.request.caller not in callers]


def test_requests_that_may_not_be_admitted_do_not_prevent_overlap() -> None:
    limit = OneOfEachCaller()
    scheduler, device = shared(extensions=extension_points({"limit": limit})), Device()
    for number, caller in enumerate("aab"):
        submit(scheduler, str(number), prompt(number, 0, 5), caller=caller, params=LONG, arrived=float(number))
    for _ in range(5):
        step(scheduler, device)
    assert [sequence.request.id for sequence in scheduler.waiting] == ["1"]
    calls, chunks = limit.calls, scheduler.plan()
    assert scheduler.plan_ahead(chunks) and limit.calls <= calls + 2
    submit(scheduler, "3", prompt(3, 0, 5), caller="c", params=LONG)
    assert not scheduler.plan_ahead(chunks), "a new request may preempt a running sequence"


def test_a_request_that_lacked_kv_slots_and_was_aborted_preempts_nothing() -> None:
    clock, policy = Clock(), FairShare()
    preemption = Preemption(clock, policy)
    scheduler = make(
        policy=lambda: policy, preemption=preemption, accounting=CallerAccounting(policy, policy), capacity=4000
    )
    device = Device()
    for number in range(4):
        submit(scheduler, f"heavy {number}", prompt(1, number, 5), caller="heavy", params=LONG)
    for _ in range(3):
        step(scheduler, device)
    submit(scheduler, "large", prompt(2, 0, 3900), caller="other", params={"max_new_tokens": 2})
    for _ in range(RETRY_STEPS):
        step(scheduler, device)
    scheduler.abort("large")
    clock.seconds += RETRY_SECONDS
    submit(scheduler, "small", prompt(2, 1, 5), caller="other", params={"max_new_tokens": 2})
    running = list(scheduler.running)
    step(scheduler, device)
    assert scheduler.running[: len(running)] == running, "there was a free running slot"


def test_callers_without_a_running_sequence_get_one_after_a_turn() -> None:
    clock = Clock()
    scheduler, device = shared(clock=clock, max_running=2, chunk_size=200), Device()
    for number in range(5):
        key = f"caller {number}"
        submit(scheduler, key, prompt(number, 0, 5), caller=key, params={**LONG, "max_new_tokens": 150})
    callers = set()
    for _ in range(60):
        clock.seconds += TURN_SECONDS / 10
        step(scheduler, device)
        callers |= {sequence.caller for sequence in scheduler.running}
    assert len(callers) == 5


@pytest.mark.parametrize("cache", [RadixCache, NoCache])
@settings(max_examples=40, deadline=None)
@given(
    capacity=st.integers(60, 400),
    seconds=st.floats(0.01, 10.0),
    requests=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=16),
    aborted=st.integers(0, 16),
    deadlines=st.booleans(),
)
def test_outputs_do_not_depend_on_who_shares(
    cache: Any, capacity: int, seconds: float, requests: list[tuple[int, int, int]], aborted: int, deadlines: bool
) -> None:
    clock, device = Clock(), Device()
    policy = EarliestDeadline() if deadlines else FairShare()
    scheduler = shared(policy, clock, cache=cache, capacity=capacity, max_running=3, chunk_size=16)
    later = sorted(enumerate(requests), key=lambda item: item[1][2])
    outputs: dict[str, list[int]] = {}
    for number in range(10_000):
        while later and (later[0][1][2] <= number or not scheduler.busy):
            index, (caller, length, arrival) = later.pop(0)
            due = float(length) if deadlines and caller else None
            submit(
                scheduler,
                str(index),
                prompt(caller, index, length),
                caller=str(caller),
                deadline=due,
                arrived=float(arrival),
                params={"max_new_tokens": 10},
            )
        if number == 5:
            scheduler.abort(str(aborted))
        if not scheduler.busy and not later:
            break
        if not scheduler.busy:
            continue
        clock.seconds += seconds
        for output in step(scheduler, device):
            outputs.setdefault(output.id, []).extend(output.tokens)
    for index, (caller, length, _) in enumerate(requests):
        if index != aborted:
            assert outputs[str(index)] == expected(prompt(caller, index, length), min(10, capacity - length))
    scheduler.check()
    assert not isinstance(policy, FairShare) or not policy.counters.active


def test_a_policy_may_preempt_only_what_it_was_given() -> None:
    class Wrong(FairShare):
        def preempt(
            self, running: Ordered[Waiting], waiting: Ordered[Waiting], free_running_slots: int
        ) -> tuple[Ordered[Waiting], Ordered[Waiting]]:
            return waiting[:1], running[:1]

    scheduler, device = shared(Wrong(), max_running=1), Device()
    for caller in ("a", "b"):
        submit(scheduler, caller, [1], caller=caller, params=LONG)
    with pytest.raises(RuntimeError, match=r"preempt\(\) must return"):
        for _ in range(3):
            step(scheduler, device)


def test_the_earliest_deadline_preempts_the_latest() -> None:
    scheduler, device = shared(EarliestDeadline(), max_running=2), Device()
    for number, deadline in enumerate([None, 50.0, 10.0]):
        submit(scheduler, str(number), prompt(number, 0, 5), params=LONG, deadline=deadline)
        step(scheduler, device)
    assert {sequence.request.id for sequence in scheduler.running} == {"1", "2"}
