"""The order in which constraints are compiled."""

from __future__ import annotations

import queue
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug import Constraint
from sglang_plug_backends.structured_outputs.grammar_queue import MAX_DELAY, GrammarQueue


class Clock:
    """A clock whose time a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def constraint(name: str, length: int = 10) -> Constraint:
    return Constraint("regex", name.ljust(length, "x"))


def test_short_constraints_overtake_long_ones_that_came_shortly_before() -> None:
    clock = Clock()
    jobs = GrammarQueue(clock)
    long, short, shortest = constraint("a", 20_000), constraint("b", 1000), constraint("c", 10)
    for job in (long, short, shortest):
        jobs.put(job)
        clock.now += 0.1
    assert [jobs.take(), jobs.take(), jobs.take()] == [shortest, short, long]


def test_a_long_constraint_is_not_overtaken_for_ever() -> None:
    clock = Clock()
    jobs = GrammarQueue(clock)
    long = constraint("a", 1 << 20)
    jobs.put(long)
    clock.now += MAX_DELAY + 0.1
    jobs.put(constraint("b"))
    assert jobs.take() == long


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 1 << 18)), min_size=1, max_size=20))
def test_nothing_is_overtaken_by_what_comes_much_later(arrivals: list[tuple[float, int]]) -> None:
    clock = Clock()
    jobs = GrammarQueue(clock)
    times: dict[Constraint, float] = {}
    for number, (pause, length) in enumerate(arrivals):
        clock.now += pause
        job = constraint(f"{number} ", length)
        times[job] = clock.now
        jobs.put(job)
    remaining = set(times)
    while remaining:
        first = jobs.take()
        assert first is not None
        remaining.remove(first)
        assert all(times[first] <= times[other] + MAX_DELAY for other in remaining)


def test_what_nobody_waits_for_any_more_leaves_the_queue() -> None:
    clock = Clock()
    jobs = GrammarQueue(clock)
    jobs.put(constraint("a"))
    clock.now += 2.0
    jobs.put(constraint("b"))
    assert jobs.longest_wait() == 2.0
    assert jobs.discard(constraint("a")) and not jobs.discard(constraint("a"))
    assert jobs.longest_wait() == 0.0
    assert jobs.take() == constraint("b")
    with pytest.raises(queue.Empty):
        jobs.take(0.0)


def test_closing_wakes_everybody_who_waits() -> None:
    jobs = GrammarQueue()
    taken: list[Constraint | None] = []
    threads = [threading.Thread(target=lambda: taken.append(jobs.take())) for _ in range(3)]
    for thread in threads:
        thread.start()
    jobs.close()
    for thread in threads:
        thread.join()
    assert taken == [None] * 3 and jobs.take() is None
