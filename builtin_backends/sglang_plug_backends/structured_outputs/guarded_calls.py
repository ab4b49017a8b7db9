"""Calls in threads with a time limit: calls that take too long are abandoned."""

from __future__ import annotations

import queue
import threading
import time
import weakref
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import Any, Generic, TypeVar

THREADS = 8
CALLS_PER_RUN = 16
"""Number of calls that a thread makes one after the other: waking a thread costs more than most calls."""
POLL_SECONDS = 0.05
"""Seconds between two checks for calls that take too long."""

Result = TypeVar("Result")


class Run(Generic[Result]):
    """A batch of calls, made one after the other in one thread.

    Args:
        calls: with the number of each.
        now: the clock, in seconds.
    """

    def __init__(self, calls: Ordered[tuple[int, Callable[[], Result]]], now: Callable[[], float]) -> None:
        self.calls, self._now = calls, now
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self.detached = False
        self.started = 0.0
        """The start of the current call; 0: none has started yet."""
        self._working = threading.Lock()
        self._working.acquire()

    def make(self) -> None:
        """Make the calls."""
        try:
            for _, call in self.calls:
                if self.detached:
                    return
                self.started = self._now()
                self.results.append(call())
        except BaseException as error:
            self.error = error
        finally:
            self._working.release()

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the calls; return True if all are made."""
        if not self._working.acquire(timeout=timeout):
            return False
        self._working.release()
        return True

    def is_timed_out(self, since: float) -> bool:
        """Report whether the current call began before ``since``."""
        return 0.0 < self.started < since


Jobs = queue.SimpleQueue[Run[Any] | None]
"""Queue of batches for the threads; ``None`` ends a thread."""


class Threads:
    """A pool of threads, which is abandoned and replaced when a call keeps a thread for too long.

    Args:
        timeout: seconds that one call may take.
        max_threads: largest number of threads.
        now: the clock, in seconds.
    """

    def __init__(self, timeout: float, max_threads: int = THREADS, now: Callable[[], float] = time.monotonic) -> None:
        self.timeout, self._max_threads, self.now = timeout, max_threads, now
        self._refresh()

    def begin(self, calls: Ordered[Callable[[], Result]]) -> Calls[Result]:
        """Start ``calls``, which must not raise."""
        return Calls(self, calls)

    def submit(self, run: Run[Any]) -> None:
        """Queue ``run``, whose calls are made as soon as a thread is free."""
        if self._started < self._max_threads:
            self._started += 1
            threading.Thread(target=_work, args=(self._jobs,), name="grammar", daemon=True).start()
        self._jobs.put(run)

    def refresh(self) -> None:
        """Abandon the threads to their current calls; queued batches go to new threads."""
        waiting: list[Run[Any]] = []
        try:
            while (run := self._jobs.get_nowait()) is not None:
                waiting.append(run)
        except queue.Empty:
            pass
        self._end()
        self._refresh()
        for run in waiting:
            self.submit(run)

    def _refresh(self) -> None:
        self._jobs: Jobs = queue.SimpleQueue()
        self._started = 0
        self._end = weakref.finalize(self, _end, self._jobs, self._max_threads)


def _work(jobs: Jobs) -> None:
    while (run := jobs.get()) is not None:
        run.make()
        del run  # and the objects that its calls hold


def _end(jobs: Jobs, threads: int) -> None:
    for _ in range(threads):
        jobs.put(None)


class Calls(Generic[Result]):
    """A set of calls in progress."""

    def __init__(self, threads: Threads, calls: Ordered[Callable[[], Result]]) -> None:
        self._threads = threads
        self._results: list[Result | None] = [None] * len(calls)
        numbered = list(enumerate(calls))
        self._runs: list[Run[Result]] = []
        for start in range(0, len(calls), CALLS_PER_RUN):
            self._submit(numbered[start : start + CALLS_PER_RUN])

    def results(self) -> list[Result | None]:
        """Wait for the results of all calls; ``None`` for a call that ran out of time."""
        while not self.have_ended(POLL_SECONDS):
            pass
        return self._results

    def have_ended(self, seconds: float = 0.0) -> bool:
        """Report whether ``results`` need not wait, after waiting ``seconds`` at most for each batch of calls."""
        while self._runs and self._runs[0].wait(seconds):
            self._take(self._runs.pop(0))
        since = self._threads.now() - self._threads.timeout
        if timed_out := [run for run in self._runs if not run.wait(0) and run.is_timed_out(since)]:
            self._detach(timed_out)
        return not self._runs

    def _submit(self, calls: Ordered[tuple[int, Callable[[], Result]]]) -> None:
        run = Run(calls, self._threads.now)
        self._runs.append(run)
        self._threads.submit(run)

    def _detach(self, timed_out: Ordered[Run[Result]]) -> None:
        """Abandon the current calls of the batches in ``timed_out``; make their remaining calls in new threads."""
        for run in timed_out:
            run.detached = True
        self._threads.refresh()
        self._runs = [run for run in self._runs if run not in timed_out]
        for run in timed_out:
            if remaining := run.calls[self._take(run) + 1 :]:
                self._submit(remaining)

    def _take(self, run: Run[Result]) -> int:
        """Store the available results of a batch; return their number."""
        if run.error is not None:
            raise run.error
        results = list(run.results)
        for (index, _), result in zip(run.calls, results, strict=False):
            self._results[index] = result
        return len(results)
