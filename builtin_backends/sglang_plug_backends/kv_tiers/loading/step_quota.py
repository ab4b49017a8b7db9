"""Limits what is loaded while a step is computed on the same processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STEP_BYTES = 16 << 20
"""Maximum number of bytes that are loaded during a step: reading and verifying them takes some 10 ms of a core."""
IDLE_SECONDS = 0.5
"""Seconds after the end of a step from which on nobody is assumed to wait for the next one."""


class StepQuota:
    """The bytes that threads may load until the step under way ends, if sequences that decode wait for it.

    Args:
        max_bytes: in one step; a block that is larger may be loaded in a step of its own.
        clock: the time in seconds.
        changed: notified when a step ends; ``None``: a condition of this quota.
    """

    def __init__(
        self,
        max_bytes: int = STEP_BYTES,
        *,
        clock: Callable[[], float] = time.monotonic,
        changed: threading.Condition | None = None,
    ) -> None:
        self.max_bytes, self._clock = max_bytes, clock
        self._changed = threading.Condition() if changed is None else changed
        self._decoding, self._ended = False, 0.0
        self._used = 0

    def step_done(self, decoding: bool) -> None:
        """Note that a step has ended; ``decoding``: it had sequences that probably decode in the next one, too."""
        with self._changed:
            self._decoding, self._ended, self._used = decoding, self._clock(), 0
            self._changed.notify_all()

    def take(self, size: int) -> None:
        """Wait until ``size`` bytes may be loaded."""
        with self._changed:
            while self._used and self._used + size > self.max_bytes and (seconds := self._seconds_of_step()) > 0:
                self._changed.wait(seconds)
            self._used += size

    def _seconds_of_step(self) -> float:
        """Return for how long the end of a step is waited for at most; 0 if sequences do not wait for one."""
        return max(0.0, self._ended + IDLE_SECONDS - self._clock()) if self._decoding else 0.0
