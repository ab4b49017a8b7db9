"""Calls in threads: results in order, the late ones left behind, the others made all the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest

from sglang_plug_backends.structured_outputs.guarded_calls import THREADS, TOGETHER, Threads


def number(value: int) -> int:
    return value


def test_results_are_in_order() -> None:
    count = 3 * TOGETHER + 1
    assert Threads(240.0).begin([partial(number, index) for index in range(count)]).results() == list(range(count))
    assert Threads(240.0).begin([]).results() == []


@pytest.mark.parametrize("late", [{0}, {3}, {TOGETHER - 1, TOGETHER}, {2, 5, 9}, {4 * TOGETHER - 1}])
def test_only_the_late_ones_have_no_result(late: set[int]) -> None:
    released, threads = threading.Event(), Threads(0.3)

    def stuck() -> int:
        released.wait(240)
        return -1

    calls: list[Callable[[], int]] = [
        stuck if index in late else partial(number, index) for index in range(4 * TOGETHER)
    ]
    try:
        assert threads.begin(calls).results() == [None if index in late else index for index in range(4 * TOGETHER)]
        assert threads.begin([partial(number, 7)]).results() == [7]
    finally:
        released.set()


def test_more_late_ones_than_threads() -> None:
    released, threads = threading.Event(), Threads(0.3)
    calls: list[Callable[[], int | None]] = []
    for _ in range(THREADS + 2):
        calls += [lambda: 1 if released.wait(240) else 2, *[partial(number, 0)] * (TOGETHER - 1)]
    try:
        results = threads.begin(calls).results()
    finally:
        released.set()
    assert [result for result in results if result is None] == [None] * (THREADS + 2) and results.count(0) == len(
        results
    ) - THREADS - 2


def test_a_run_that_is_left_behind_makes_no_more_calls() -> None:
    released, made = threading.Event(), []
    threads = Threads(0.3)
    last = threading.Event()

    def stuck() -> int:
        released.wait(240)
        last.set()
        return 0

    def note() -> int:
        made.append(threading.current_thread())
        return 1

    assert threads.begin([stuck, note]).results() == [None, 1]
    released.set()
    assert last.wait(240)
    threads.begin([partial(number, 1)]).results()
    assert len(made) == 1


def test_waiting_in_a_queue_is_not_being_late() -> None:
    pause, now = threading.Event(), [1.0]

    def take_three_seconds() -> bool:
        now[0] += 3.0
        return pause.wait(0.06)  # somebody looks meanwhile

    one_batch = [take_three_seconds, *[lambda: False] * (TOGETHER - 1)]
    threads = Threads(5.0, max_threads=1, now=lambda: now[0])
    assert threads.begin(one_batch * 8).results() == [False] * 8 * TOGETHER
