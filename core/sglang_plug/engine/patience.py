"""Calls in threads, of which a few may take too long: those are left behind, and nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

THREADS = 8
TOGETHER = 16
"""Calls that a thread makes one after the other: waking one costs more than most calls."""
LOOK = 0.05
"""Seconds between two looks at calls that are late."""

Result = TypeVar("Result")


class Threads:
    """Some threads, which are given up and replaced when a call keeps one for too long."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._pool = ThreadPoolExecutor(THREADS, "grammar")

    def begin(self, calls: Ordered[Callable[[], Result]]) -> Calls[Result]:
        """Start ``calls``, which must not raise."""
        return Calls(self, calls)

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Run one call as soon as a thread is free."""
        return self._pool.submit(call)

    def renew(self) -> None:
        """Leave the threads to what they do; calls that have not started are cancelled."""
        old, self._pool = self._pool, ThreadPoolExecutor(THREADS, "grammar")
        old.shutdown(wait=False, cancel_futures=True)


class Run(Generic[Result]):
    """Some of the calls, made one after the other in one thread."""

    def __init__(self, calls: Ordered[tuple[int, Callable[[], Result]]]) -> None:
        self.calls = calls
        self.results: list[Result] = []
        self.left_behind = False
        self.started = 0.0
        """When the call that is being made was begun; 0: none was yet."""

    def __call__(self) -> None:
        for _, call in self.calls:
            if self.left_behind:
                return
            self.started = time.monotonic()
            self.results.append(call())

    def is_late(self, since: float) -> bool:
        """True if the call that is being made began before ``since``."""
        return 0.0 < self.started < since


class Calls(Generic[Result]):
    """Calls that are under way."""

    def __init__(self, threads: Threads, calls: Ordered[Callable[[], Result]]) -> None:
        self._threads = threads
        self._found: list[Result | None] = [None] * len(calls)
        numbered = list(enumerate(calls))
        self._runs: dict[Future[None], Run[Result]] = {}
        for start in range(0, len(calls), TOGETHER):
            self._submit(numbered[start : start + TOGETHER])

    def results(self) -> list[Result | None]:
        """Of each call; ``None`` if it ran out of time."""
        while self._runs:
            if not all(future.done() for future in self._runs):
                wait(self._runs, timeout=LOOK)
            self._collect()
            since = time.monotonic() - self._threads.patience
            late = [future for future, run in self._runs.items() if run.is_late(since)]
            if late:
                self._leave(late)
        return self._found

    def _submit(self, calls: Ordered[tuple[int, Callable[[], Result]]]) -> None:
        run = Run(calls)
        self._runs[self._threads.submit(run)] = run

    def _leave(self, late: Ordered[Future[None]]) -> None:
        """Go on without the calls that ``late`` runs are at, in new threads."""
        for future in late:
            self._runs[future].left_behind = True
        self._threads.renew()
        again = []
        for future in late:
            run = self._runs.pop(future)
            done = self._take(run)
            again.append(run.calls[done + 1 :])
        self._collect()
        again += [self._runs.pop(future).calls for future in list(self._runs) if future.cancelled()]
        for calls in filter(None, again):
            self._submit(calls)

    def _collect(self) -> None:
        for future in [one for one in self._runs if one.done() and not one.cancelled()]:
            future.result()
            self._take(self._runs.pop(future))

    def _take(self, run: Run[Result]) -> int:
        """Keep the results there are; how many."""
        results = list(run.results)
        for (place, _), result in zip(run.calls, results, strict=False):
            self._found[place] = result
        return len(results)
