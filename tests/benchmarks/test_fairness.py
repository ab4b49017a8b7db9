"""The simulation of callers: targets under the load of a heavy caller, the unfairness bound, and honest accounts."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.common.simulation import Arrival, Simulation
from benchmarks.fairness import (
    BURSTS,
    COSTS,
    LONGEST_PROMPT,
    Unfairness,
    bound,
    day,
    engine,
    loaded,
    simulate_day,
    write_plots,
)
from sglang_plug_api.benchmarking.svg import Line, plot
from sglang_plug_backends.schedule.callers import FairShare
from sglang_plug_backends.schedule.policies import FirstCome

ACCELERATOR = COSTS["accelerator"]
HEAVY = [Arrival(0.0, name, length, output) for name, length, output in [("a", 2000, 4), ("b", 60, 200)] * 30]


@pytest.mark.parametrize("costs", sorted(COSTS))
def test_an_interactive_caller_hardly_waits_and_the_heavy_one_hardly_loses(costs: str) -> None:
    shared, first_come = (loaded(policy, costs, prompts=100, count=10) for policy in ("fair", "fcfs"))
    assert shared.loaded_p99 <= shared.limit
    assert shared.heavy_throughput >= 0.95
    assert first_come.loaded_p99 > 10 * shared.loaded_p99


def test_the_unfairness_of_a_short_day_is_bounded_and_without_sharing_it_is_not() -> None:
    trace = day(60.0, ACCELERATOR, load=1.2)
    shared, served, _ = simulate_day("fair", ACCELERATOR, trace)
    first_come, _, _ = simulate_day("fcfs", ACCELERATOR, trace)
    assert 0 < shared.unfairness <= shared.bound < first_come.unfairness
    assert 10 * shared.light_median < first_come.light_median and shared.light_p99 < first_come.light_p99
    assert all(request.finished for request in served)


@pytest.mark.parametrize("costs", sorted(COSTS))
def test_callers_that_always_wait_are_served_alike(costs: str) -> None:
    simulated, unfairness = engine(COSTS[costs]), Unfairness("ab")
    simulation = Simulation(simulated, FairShare())
    simulation.run(HEAVY * 3, after_step=unfairness.measure)
    assert 0 < unfairness.largest <= bound(simulated, LONGEST_PROMPT)


def test_a_caller_of_long_prompts_gets_no_more_because_each_of_them_waits_for_long() -> None:
    """Time slices preempt sequences for requests that wait; the policy decides which requests are admitted."""
    prompt_len, output_len = 3000, 100
    light = [f"caller {number}" for number in range(40)]
    trace = [Arrival(0.0, "heavy", prompt_len, output_len)] * 40
    trace += [Arrival(0.0, caller, 200, 100) for caller in light for _ in range(10)]
    unfairness = Unfairness(["heavy", *light])
    Simulation(engine(COSTS["cpu"]), FairShare()).run(trace, until=150.0, after_step=unfairness.measure)
    assert 0 < unfairness.largest <= 1.5 * (prompt_len + 2 * output_len)


def test_sharing_does_not_leave_the_engine_idle() -> None:
    ends = []
    for policy in (FairShare(), FirstCome()):
        simulation = Simulation(engine(ACCELERATOR), policy)
        simulation.run(HEAVY)
        ends.append(simulation.now)
    assert ends[0] <= 1.1 * ends[1]


def test_the_account_of_the_simulation_counts_each_token_once() -> None:
    simulation = Simulation(engine(ACCELERATOR), FairShare())
    served = simulation.run(HEAVY)
    for caller in "ab":
        own = [request.arrival for request in served if request.arrival.caller == caller]
        assert simulation.service.computed[caller] == sum(request.prompt_len for request in own)
        assert simulation.service.generated[caller] == sum(request.output_len for request in own)


def test_a_day_has_a_night() -> None:
    trace = day(600.0, ACCELERATOR)
    hours = [int(arrival.time * 24 / 600) for arrival in trace]
    assert sum(14 <= hour < 17 for hour in hours) > 3 * sum(2 <= hour < 5 for hour in hours)
    assert len({arrival.caller for arrival in trace}) > 10 * BURSTS


def test_plots_are_small_and_well_formed(tmp_path: Path) -> None:
    figures = [loaded(policy, "accelerator", prompts=5, count=3) for policy in ("fcfs", "fair")]
    trace = day(5.0, ACCELERATOR)
    write_plots(
        tmp_path, 5.0, figures, {policy: simulate_day(policy, ACCELERATOR, trace) for policy in ("fcfs", "fair")}
    )
    for name in ("first-token", "day", "unfairness"):
        text = (tmp_path / f"{name}.svg").read_text()
        assert ElementTree.fromstring(text).tag.endswith("svg") and len(text) < 40_000


def test_names_in_plots_are_escaped() -> None:
    assert "&lt;a&gt;" in plot([Line("<a>", [(1.0, 2.0), (3.0, 4.0)])], "x", "y")
