"""Virtual token counters of callers: bounded differences, weights, idle callers and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Match, TokenUsage
from sglang_plug_backends.schedule.callers import (
    REMEMBERED,
    FairSettings,
    FairShare,
    FairShareLongestPrefix,
    VirtualCounters,
)

MAX_CHARGE = 100
"""Maximum number of input tokens, and output tokens, of one charge."""
PRICES = FairSettings()
LARGEST = MAX_CHARGE * (PRICES.input_weight + PRICES.output_weight)
CALLERS = "abcd"
charges = st.lists(st.tuples(st.integers(0, MAX_CHARGE), st.integers(0, MAX_CHARGE)), min_size=1, max_size=120)
weights = st.lists(st.floats(0.001, 1000.0), min_size=4, max_size=4)


@dataclass(frozen=True)
class Item:
    """A waiting sequence."""

    caller: str
    arrived: float
    tokens: Sequence[int] = (1,) * 10
    priority: int = 0
    deadline: float | None = None
    computed: int = 0


def no_match(item: object) -> Match:
    return Match((), None)


def queued(names: str, by_weight: Sequence[float] = (1.0,) * 4) -> VirtualCounters:
    counters = VirtualCounters(PRICES)
    for name, weight in zip(names, by_weight, strict=False):
        counters.activate(name, weight)
        counters.join_queue(name)
    return counters


@given(charges=charges, by_weight=weights)
def test_backlogged_callers_differ_by_at_most_one_charge(
    charges: list[tuple[int, int]], by_weight: list[float]
) -> None:
    counters, served = queued(CALLERS, by_weight), Counter[str]()
    weight = dict(zip(CALLERS, by_weight, strict=True))
    for computed, generated in charges:
        caller = min(CALLERS, key=counters.rank)
        counters.charge([TokenUsage(caller, computed, generated)])
        served[caller] += PRICES.input_weight * computed + PRICES.output_weight * generated
    normalized = [served[name] / weight[name] for name in CALLERS]
    assert max(normalized) - min(normalized) <= LARGEST / min(by_weight) * (1 + 1e-9)


@given(charges=charges)
def test_service_is_in_proportion_to_weights(charges: list[tuple[int, int]]) -> None:
    counters, served = queued("ab", (3.0, 1.0)), Counter[str]()
    for computed, generated in charges:
        caller = min("ab", key=counters.rank)
        counters.charge([TokenUsage(caller, computed, generated)])
        served[caller] += PRICES.input_weight * computed + PRICES.output_weight * generated
    assert abs(served["a"] / 3 - served["b"]) <= LARGEST


events = st.lists(
    st.tuples(st.sampled_from(CALLERS), st.sampled_from(["queue", "admit", "end"]), st.integers(0, MAX_CHARGE)),
    max_size=200,
)


class Calls:
    """Calls a policy in the order of an engine; random events decide how long requests run."""

    def __init__(self, counters: VirtualCounters) -> None:
        self.counters = counters
        self.waiting, self.running = Counter[str](), Counter[str]()

    def apply(self, caller: str, event: str, tokens: int) -> None:
        if event == "queue":
            if not self.waiting[caller] and not self.running[caller]:
                self.counters.activate(caller, 1.0)
            if not self.waiting[caller]:
                self.counters.join_queue(caller)
            self.waiting[caller] += 1
        elif event == "admit" and +self.waiting:
            lowest = min(+self.waiting, key=self.counters.rank)
            self.waiting[lowest] -= 1
            self.running[lowest] += 1
            if not self.waiting[lowest]:
                self.counters.leave_queue(lowest)
            self.counters.charge([TokenUsage(lowest, tokens, 0)])
        elif event == "end" and self.running[caller]:
            self.running[caller] -= 1
            if not self.running[caller] and not self.waiting[caller]:
                self.counters.deactivate(caller)

    def spread(self) -> float:
        counters = [self.counters.counter(caller) for caller in +self.waiting]
        return max(counters) - min(counters) if counters else 0.0


@given(events=events)
def test_the_bound_holds_while_callers_come_and_go(events: list[tuple[str, str, int]]) -> None:
    calls = Calls(VirtualCounters(PRICES))
    for caller, event, tokens in events:
        calls.apply(caller, event, tokens)
        assert calls.spread() <= MAX_CHARGE
    assert calls.counters.total_weight == calls.counters.active


@given(events=events, idle=st.integers(1, 60))
def test_a_caller_gains_nothing_from_idleness(events: list[tuple[str, str, int]], idle: int) -> None:
    calls = Calls(VirtualCounters(PRICES))
    for caller, event, tokens in events:
        calls.apply(caller, event, tokens)
    for caller in "bc":
        for _ in range(idle):
            calls.apply(caller, "queue", 0)
    for _ in range(idle):
        calls.apply("", "admit", MAX_CHARGE)
    others = {caller: calls.counters.counter(caller) for caller in +calls.waiting if caller != "a"}
    idle_before = not calls.waiting["a"]
    calls.apply("a", "queue", 0)
    assert not others or not idle_before or calls.counters.counter("a") >= min(others.values())


def test_a_slow_open_request_saves_up_nothing() -> None:
    calls = Calls(VirtualCounters(PRICES))
    calls.apply("slow", "queue", 0)
    calls.apply("", "admit", 1)
    for _ in range(50):
        calls.apply("heavy", "queue", 0)
    for _ in range(49):
        calls.apply("", "admit", MAX_CHARGE)
    calls.apply("slow", "queue", 0)
    assert calls.counters.counter("slow") == calls.counters.counter("heavy") > 10 * MAX_CHARGE


def test_nobody_starts_at_the_counter_of_a_caller_that_may_not_run_more() -> None:
    counters = queued("ab")
    for _ in range(50):
        counters.charge([TokenUsage("b", MAX_CHARGE, 0)])  # "a" waits: it has as many running sequences as it may
    counters.activate("c", 1.0)
    counters.join_queue("c")
    assert counters.counter("b") - counters.counter("c") <= MAX_CHARGE


def test_a_newcomer_starts_where_the_last_queue_was_emptied() -> None:
    counters = queued("a")
    counters.charge([TokenUsage("a", 500, 0)])
    counters.leave_queue("a")
    counters.charge([TokenUsage("a", 0, 10)])
    counters.activate("b", 1.0)
    counters.join_queue("b")
    assert counters.counter("b") == counters.counter("a") == 520


def test_counters_of_callers_without_requests_are_forgotten() -> None:
    counters = queued("a")
    for number in range(3 * REMEMBERED):
        name = str(number)
        counters.activate(name, 1.0)
        counters.join_queue(name)
        counters.charge([TokenUsage(name, 10, 0)])
        counters.leave_queue(name)
        counters.deactivate(name)
        assert counters.known <= REMEMBERED + 2
    assert counters.counter("a") == 0 and counters.active == 1


def sharing(policy: FairShare, *callers: str, weight: float = 1.0) -> FairShare:
    for caller in callers:
        policy.activated(caller, weight if caller == callers[0] else 1.0)
        policy.joined_queue(caller)
    return policy


@pytest.mark.parametrize("policy", [FairShare, FairShareLongestPrefix])
@settings(max_examples=50)
@given(owners=st.lists(st.sampled_from(CALLERS), max_size=40), weight=st.floats(0.001, 1000.0))
def test_each_caller_is_served_by_arrival_and_nobody_is_left_out(
    policy: type[FairShare], owners: list[str], weight: float
) -> None:
    queue = [Item(caller, float(number)) for number, caller in enumerate(owners)]
    order = sharing(policy(), *sorted(set(owners)), weight=weight).order(queue, no_match)
    assert sorted(order, key=lambda item: item.arrived) == queue
    for caller in set(owners):
        own = [item.arrived for item in order if item.caller == caller]
        assert own == sorted(own)


def test_a_caller_with_a_large_weight_comes_first_until_it_has_its_part() -> None:
    policy = sharing(FairShare(), "big", "small", weight=1000.0)
    queue = [Item("small", 0.0), *(Item("big", float(number)) for number in range(1, 2000))]
    policy.charge([TokenUsage("small", 1, 0)])
    assert policy.order(queue, no_match)[:100] == queue[1:101]
    policy.charge([TokenUsage("big", 2000, 0)])
    assert policy.order(queue, no_match)[0] == queue[0]


def test_one_caller_is_served_in_the_order_of_arrival_and_preempts_nobody() -> None:
    policy = sharing(FairShare(), "a")
    queue = [Item("a", float(number)) for number in (3, 1, 2)]
    assert [item.arrived for item in policy.order(queue, no_match)] == [1.0, 2.0, 3.0]
    assert not policy.can_preempt()


@pytest.mark.parametrize("policy", [FairShare, FairShareLongestPrefix])
def test_a_priority_orders_the_requests_of_its_caller_only(policy: type[FairShare]) -> None:
    own = [Item("a", 0.0), Item("a", 1.0, priority=5), Item("a", 2.0, priority=-1), Item("a", 3.0, priority=5)]
    alone = sharing(policy(), "a").order(own, no_match)
    assert [item.arrived for item in alone] == [1.0, 3.0, 0.0, 2.0]
    order = sharing(policy(), "a", "b").order([*own, Item("b", 4.0, priority=-9)], no_match)
    assert [item.arrived for item in order if item.caller == "a"] == [1.0, 3.0, 0.0, 2.0]
    assert [item.caller for item in order[:2]] == ["b", "a"], "the other caller keeps its turn"


@settings(max_examples=100)
@given(running=st.lists(st.sampled_from(CALLERS), max_size=12), waiting=st.lists(st.sampled_from(CALLERS), max_size=12))
def test_preemption_leaves_each_caller_at_least_its_fair_share(running: list[str], waiting: list[str]) -> None:
    policy = sharing(FairShare(), *sorted({*running, *waiting}))
    held = [Item(caller, float(number)) for number, caller in enumerate(running)]
    queue = [Item(caller, 100.0 + number) for number, caller in enumerate(waiting)]
    ended, first = policy.preempt(held, queue, 0)
    assert len(ended) == len(first)
    before, after = Counter(running), Counter(running)
    after.subtract(item.caller for item in ended)
    after.update(item.caller for item in first)
    fair_share = max(1.0, len(running) / max(1, len({*running, *waiting})))
    assert sum(after.values()) == len(running)
    for caller in CALLERS:
        assert after[caller] >= min(before[caller], int(fair_share))
        assert after[caller] <= max(before[caller], fair_share)


def test_each_caller_gets_one_slot_if_there_are_more_callers_than_running_slots() -> None:
    policy = sharing(FairShare(), *"abcd")
    held = [Item("a", float(number)) for number in range(3)]
    ended, first = policy.preempt(held, [Item("b", 5.0), Item("c", 6.0), Item("d", 7.0)], 0)
    assert ended == held[:0:-1] and {item.caller for item in first} < set("bcd") and len(first) == 2
