"""Calls in threads, of which a few may take too long: those are left behind, and nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

THREADS = 8
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

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Run one call as soon as a thread is free."""
        return self._pool.submit(call)

    def renew(self) -> None:
        """Leave the threads to what they do; calls that have not started are cancelled."""
        old, self._pool = self._pool, ThreadPoolExecutor(THREADS, "grammar")
        old.shutdown(wait=False, cancel_futures=True)


class Calls(Generic[Result]):
    """Calls that are under way."""

    def __init__(self, threads: Threads, calls: Ordered[Callable[[], Result]]) -> None:
        self._threads, self._calls = threads, calls
        self._started: dict[int, float] = {}
        self._left = {index: threads.submit(self._timed(index)) for index in range(len(calls))}

    def results(self) -> list[Result | None]:
        """Of each call; ``None`` if it ran out of time."""
        found: list[Result | None] = [None] * len(self._calls)
        while self._left:
            wait(self._left.values(), timeout=LOOK)
            self._collect(found)
            late = time.monotonic() - self._threads.patience
            guilty = [index for index in self._left if self._started.get(index, late) < late]
            if guilty:
                self._leave(guilty, found)
        return found

    def _leave(self, guilty: list[int], found: list[Result | None]) -> None:
        self._threads.renew()
        for index in guilty:
            future = self._left.pop(index)
            found[index] = future.result() if future.done() and not future.cancelled() else None
        self._collect(found)
        for index, future in self._left.items():
            if future.cancelled():
                self._left[index] = self._threads.submit(self._timed(index))

    def _collect(self, found: list[Result | None]) -> None:
        for index, future in list(self._left.items()):
            if future.done() and not future.cancelled():
                found[index] = self._left.pop(index).result()

    def _timed(self, index: int) -> Callable[[], Result]:
        def call() -> Result:
            self._started[index] = time.monotonic()
            return self._calls[index]()

        return call
