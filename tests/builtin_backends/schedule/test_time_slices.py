"""Time slices: long-running sequences are preempted in favour of requests that have waited long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug.engine.extensions.points import ExtensionPoints
from sglang_plug.engine.extensions.step_points import PlanningPoints
from sglang_plug.engine.scheduling.caller_accounting import CallerAccounting
from sglang_plug.engine.scheduling.preemption import Preemption
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.caller_limits import CallerLimits
from sglang_plug_backends.schedule.callers import FairShare
from sglang_plug_backends.schedule.policies import FirstCome, LongestPrefix, Priority
from sglang_plug_backends.schedule.time_slices import TURN_SECONDS, TimeSlices
from tests.core.engine.scheduling.scheduler_bench import Clock, Device, expected, finish, make, step, submit

LONG = {"max_new_tokens": 400, "stop_token_ids": ()}


def make_with_clock(**options: Any) -> tuple[Scheduler, Device, Clock]:
    clock = Clock()
    options = {"capacity": 8000, "max_running": 4, "chunk_size": 200, **options}
    return make(preemption=Preemption(clock, extension=TimeSlices(clock)), **options), Device(), clock


def steps_until_finished(scheduler: Scheduler, device: Device, clock: Clock, id: str, seconds: float) -> int:
    """Count the steps, of ``seconds`` each, until a request is finished."""
    for number in range(10_000):
        clock.seconds += seconds
        if any(output.id == id and output.finish is not None for output in step(scheduler, device)):
            return number
    raise AssertionError("the request did not finish")


@pytest.mark.parametrize("policy", [FirstCome, LongestPrefix, Priority])
def test_a_short_request_does_not_wait_until_long_ones_end(policy: Any) -> None:
    scheduler, device, clock = make_with_clock(policy=policy)
    for number in range(12):
        submit(scheduler, f"long {number}", [number] * 10, params=LONG, arrived=float(number))
    step(scheduler, device)
    submit(scheduler, "short", [30, 31], params={"max_new_tokens": 2}, arrived=100.0)
    steps = steps_until_finished(scheduler, device, clock, "short", 0.1)
    assert (
        steps <= 4 * TURN_SECONDS / 0.1
    )  # four run at once and twelve requests are before it: at most three turns, and its own


@pytest.mark.parametrize("policy", [FirstCome, FairShare])
@pytest.mark.parametrize("callers", ["xx", "xyx"])
def test_a_request_that_a_limit_keeps_out_preempts_a_sequence_whose_end_lets_it_run(policy: Any, callers: str) -> None:
    clock, device, served = Clock(), Device(), policy()
    fair_share = served if isinstance(served, FairShare) else None
    scheduler = make(
        capacity=8000,
        max_running=4,
        chunk_size=200,
        policy=lambda: served,
        preemption=Preemption(clock, fair_share, extension=TimeSlices(clock)),
        accounting=CallerAccounting(fair_share, fair_share),
        extensions=ExtensionPoints(planning=PlanningPoints(order=(CallerLimits(max_running=1).order,))),
    )
    *long, short = callers
    for number, caller in enumerate(long):
        submit(scheduler, f"long {number}", [number] * 10, params=LONG, arrived=float(number), caller=caller)
    step(scheduler, device)
    submit(scheduler, "short", [30, 31], params={"max_new_tokens": 2}, arrived=100.0, caller=short)
    assert steps_until_finished(scheduler, device, clock, "short", 0.1) <= 1.5 * TURN_SECONDS / 0.1
    retractions = [sequence for sequence in scheduler.waiting if sequence.caller != short]
    assert retractions == [], "sequences of other callers do not make room for it"


def test_sequences_whose_turn_has_not_ended_are_not_preempted() -> None:
    scheduler, device, clock = make_with_clock()
    for number in range(8):
        submit(scheduler, f"long {number}", [number] * 10, params=LONG, arrived=float(number))
    step(scheduler, device)
    first = list(scheduler.running)
    for _ in range(40):
        clock.seconds += TURN_SECONDS / 50
        step(scheduler, device)
    assert scheduler.running == first


def test_no_sequence_is_preempted_if_none_waits() -> None:
    scheduler, device, clock = make_with_clock()
    for number in range(4):
        submit(scheduler, f"long {number}", [number] * 10, params=LONG)
    step(scheduler, device)
    first = list(scheduler.running)
    for _ in range(100):
        clock.seconds += TURN_SECONDS
        step(scheduler, device)
    assert scheduler.running == first


def test_a_less_urgent_request_preempts_no_more_urgent_one() -> None:
    scheduler, device, clock = make_with_clock(policy=Priority)
    for number in range(4):
        submit(scheduler, f"urgent {number}", [number] * 10, params=LONG, priority=1)
    submit(scheduler, "other", [30], params=LONG)
    for _ in range(100):
        clock.seconds += TURN_SECONDS
        step(scheduler, device)
    assert {sequence.request.id for sequence in scheduler.running} == {f"urgent {number}" for number in range(4)}


def test_a_sequence_that_generated_little_is_not_preempted() -> None:
    scheduler, device, clock = make_with_clock(max_running=1, chunk_size=64)
    submit(scheduler, "long prompt", list(range(40)) * 10, params=LONG, arrived=0.0)
    submit(scheduler, "other", [30], params=LONG, arrived=1.0)
    for _ in range(45):  # seven steps of prefill, then 38 tokens of at least 50
        clock.seconds += TURN_SECONDS
        step(scheduler, device)
    assert [sequence.request.id for sequence in scheduler.running] == ["long prompt"]


@settings(max_examples=40, deadline=None)
@given(
    cache=st.sampled_from([RadixCache, NoCache]),
    capacity=st.integers(60, 400),
    seconds=st.floats(0.1, 10.0),
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=12),
)
def test_outputs_do_not_depend_on_preemption(cache: Any, capacity: int, seconds: float, lengths: list[int]) -> None:
    scheduler, device, clock = make_with_clock(cache=cache, capacity=capacity, max_running=3)
    prompts = {str(number): [number] * length for number, length in enumerate(lengths)}
    for id, tokens in prompts.items():
        submit(scheduler, id, tokens, params={"max_new_tokens": 30}, arrived=float(id))
    reference = {id: expected(tokens, 30) for id, tokens in prompts.items()}
    outputs: dict[str, list[int]] = {}
    while scheduler.busy:
        clock.seconds += seconds
        for output in step(scheduler, device):
            outputs.setdefault(output.id, []).extend(output.tokens)
        scheduler.check()
    assert outputs == reference
    finish(scheduler, device)
