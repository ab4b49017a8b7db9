"""Calls from several threads at once: their results must be those of one thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

THREADS = 6
ROUNDS = 6


def check_threads(calls: Mapping[str, Callable[[], object]], subject: str) -> None:
    """Make every call once, and then all of them again and again in several threads, and compare.

    Raises ``AssertionError`` that names the first call whose result differs or that raises.
    """
    expected = {name: call() for name, call in calls.items()}
    start = threading.Barrier(THREADS)
    names = list(calls)

    def work(number: int) -> list[str]:
        start.wait(timeout=60)
        problems = []
        for turn in range(ROUNDS * len(names)):
            name = names[(turn * (number + 1) + number) % len(names)]
            try:
                result = calls[name]()
            except Exception as error:
                problems.append(f"{name} raised {type(error).__name__}: {error}")
                continue
            if result != expected[name]:
                problems.append(f"{name} returned {_short(result)} instead of {_short(expected[name])}")
        return problems

    with frequent_switches(), ThreadPoolExecutor(THREADS) as pool:
        problems = [problem for part in pool.map(work, range(THREADS)) for problem in part]
    assert not problems, f"{subject}: called from {THREADS} threads at once, {problems[0]}"


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Let Python switch threads as often as it can, so that unprotected state shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 120 else f"{text[:120]}…"
