"""The queue of constraints that wait for a compiling process."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from sglang_plug import Constraint

CHARACTERS_PER_SECOND = 2000.0
"""Number of source characters that delay a constraint like an arrival one second later."""
MAX_DELAY = 5.0
"""Largest delay in seconds, however long the source."""


class GrammarQueue:
    """A queue of constraints in the order in which they are compiled. Safe to use from several threads.

    The time to compile a constraint is unknown in advance, but a short source is usually quick. So the order is by
    arrival plus an estimate from the length of the source: short ones overtake long ones that came shortly before, and
    none waits for constraints that arrive more than ``MAX_DELAY`` seconds later.

    Args:
        clock: the time in seconds, like ``time.monotonic``.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._arrivals: dict[Constraint, float] = {}
        self._closed = False
        self._changed = threading.Condition()

    def put(self, constraint: Constraint) -> None:
        """Append a constraint; one that is queued already keeps its arrival."""
        with self._changed:
            self._arrivals.setdefault(constraint, self._clock())
            self._changed.notify()

    def take(self, timeout: float | None = None) -> Constraint | None:
        """Take the next constraint; ``None``: the queue is closed. Raises ``queue.Empty`` after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._closed or self._arrivals, timeout):
                raise queue.Empty
            if self._closed:
                return None
            first = min(self._arrivals, key=self._due)
            del self._arrivals[first]
            return first

    def wait(self, timeout: float) -> None:
        """Wait until there is a constraint or the queue is closed, at most ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._arrivals, timeout)

    def discard(self, constraint: Constraint) -> bool:
        """Remove a constraint that no request waits for any more; return False if it is not queued."""
        with self._changed:
            return self._arrivals.pop(constraint, None) is not None

    def longest_wait(self) -> float:
        """Return the seconds that the oldest constraint has been queued; 0 if there is none."""
        with self._changed:
            return self._clock() - min(self._arrivals.values()) if self._arrivals else 0.0

    def close(self) -> None:
        """Let every ``take`` return ``None`` from now on."""
        with self._changed:
            self._closed = True
            self._arrivals.clear()
            self._changed.notify_all()

    def _due(self, constraint: Constraint) -> float:
        return self._arrivals[constraint] + min(len(constraint.source) / CHARACTERS_PER_SECOND, MAX_DELAY)
