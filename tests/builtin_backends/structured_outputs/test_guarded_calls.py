"""Calls in threads return results in order; calls that take too long are detached, and the others continue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from sglang_plug_backends.structured_outputs.guarded_calls import CALLS_PER_RUN, THREADS, Threads


def number(value: int) -> int:
    return value


def test_results_are_in_order() -> None:
    count = 3 * CALLS_PER_RUN + 1
    assert Threads(240.0).begin([partial(number, index) for index in range(count)]).results() == list(range(count))
    assert Threads(240.0).begin([]).results() == []


@pytest.mark.parametrize(
    "timed_out", [{0}, {3}, {CALLS_PER_RUN - 1, CALLS_PER_RUN}, {2, 5, 9}, {4 * CALLS_PER_RUN - 1}]
)
def test_only_calls_that_time_out_have_no_result(timed_out: set[int]) -> None:
    released, threads = threading.Event(), Threads(0.3)

    def stuck() -> int:
        released.wait(240)
        return -1

    calls: list[Callable[[], int]] = [
        stuck if index in timed_out else partial(number, index) for index in range(4 * CALLS_PER_RUN)
    ]
    try:
        assert threads.begin(calls).results() == [
            None if index in timed_out else index for index in range(4 * CALLS_PER_RUN)
        ]
        assert threads.begin([partial(number, 7)]).results() == [7]
    finally:
        released.set()


def test_more_calls_time_out_than_there_are_threads() -> None:
    released, threads = threading.Event(), Threads(0.3)
    calls: list[Callable[[], int | None]] = []
    for _ in range(THREADS + 2):
        calls += [lambda: 1 if released.wait(240) else 2, *[partial(number, 0)] * (CALLS_PER_RUN - 1)]
    try:
        results = threads.begin(calls).results()
    finally:
        released.set()
    assert [result for result in results if result is None] == [None] * (THREADS + 2) and results.count(0) == len(
        results
    ) - THREADS - 2


def test_a_run_that_is_detached_makes_no_more_calls() -> None:
    released, callers = threading.Event(), []
    threads = Threads(0.3)
    last = threading.Event()

    def stuck() -> int:
        released.wait(240)
        last.set()
        return 0

    def note() -> int:
        callers.append(threading.current_thread())
        return 1

    assert threads.begin([stuck, note]).results() == [None, 1]
    released.set()
    assert last.wait(240)
    threads.begin([partial(number, 1)]).results()
    assert len(callers) == 1


def test_time_in_the_queue_does_not_count() -> None:
    pause, now = threading.Event(), [1.0]

    def take_three_seconds() -> bool:
        now[0] += 3.0
        return pause.wait(0.06)  # gives the waiting thread time to check the limit

    one_batch = [take_three_seconds, *[lambda: False] * (CALLS_PER_RUN - 1)]
    threads = Threads(5.0, max_threads=1, now=lambda: now[0])
    assert threads.begin(one_batch * 8).results() == [False] * 8 * CALLS_PER_RUN
