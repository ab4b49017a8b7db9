"""Growth of run time: does work take time in proportion to its size, whatever the speed of the machine?"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence

RUNS = 3
LONG = 0.5
"""Seconds of one run that is not repeated, and after which no larger size is measured."""
SHORTEST = 0.005
"""Seconds below which a run is too short to measure."""
MAX_EXPONENT = 1.5
"""Greatest exponent of the size: 1 is linear, 2 is quadratic; sorting and caches of the processor add a little."""


def check_growth(prepare: Callable[[int], Callable[[], object]], sizes: Sequence[int], subject: str) -> None:
    """Raise ``AssertionError`` if the time of ``prepare(size)()`` grows faster than in proportion to ``size``.

    Args:
        prepare: makes the work for a size; only the work itself is measured.
        sizes: ascending, each several times the one before.
        subject: the work and the unit of its size, for the message: ``"feed() of single characters"``.
    """
    times: dict[int, float] = {}
    for _ in range(2):  # a second time if the first says no: the machine may have been busy
        for size in sizes:
            times[size] = min(times.get(size, math.inf), _shortest(prepare, size))
            if times[size] > LONG:
                break
        if _exponent(times) <= MAX_EXPONENT or max(times.values()) > LONG:
            break
    if _exponent(times) <= MAX_EXPONENT:
        return
    small, large = list(times)[-2:]
    raise AssertionError(
        f"{subject}: time grows with the power {_exponent(times):.1f} of the size, and must grow in proportion: "
        f"{times[small]:.3f} s for {small}, {times[large]:.3f} s for {large}"
    )


def _exponent(times: dict[int, float]) -> float:
    if len(times) < 2:
        return 0.0
    small, large = list(times)[-2:]
    if times[large] < SHORTEST:
        return 0.0
    return math.log(times[large] / max(times[small], 1e-7)) / math.log(large / small)


def _shortest(prepare: Callable[[int], Callable[[], object]], size: int) -> float:
    shortest = math.inf
    for _ in range(RUNS):
        shortest = min(shortest, _seconds(prepare(size)))
        if shortest > LONG:
            break
    return shortest


def _seconds(work: Callable[[], object]) -> float:
    """Measure the thread's own time, without garbage collections: these take time for all objects of the process."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        if collecting:
            gc.enable()
