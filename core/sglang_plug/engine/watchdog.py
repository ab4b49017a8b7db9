"""Turns a stuck step into an error and an exit instead of a hang."""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK = 1.0
"""Seconds between two looks at the engine."""


class Heartbeat:
    """Says since when the engine has been in its current step."""

    def __init__(self) -> None:
        self._since: float | None = None

    @contextmanager
    def beat(self) -> Iterator[None]:
        """Around a step."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    @property
    def busy_for(self) -> float:
        """Seconds the current step has taken; 0 between steps."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


def watch(
    heartbeat: Heartbeat,
    timeout: float,
    stuck: Callable[[str], None],
    *,
    look: Callable[[], None] = lambda: None,
    alive: Callable[[], None] = lambda: None,
) -> threading.Event:
    """Call ``stuck`` once, from another thread, when a step takes longer than ``timeout`` seconds.

    Writes every thread's stack to standard error first. Set the returned event to stop watching.

    Args:
        heartbeat: of the engine.
        timeout: seconds.
        stuck: told what is wrong.
        look: called every second while a step takes longer than one.
        alive: called now and every second, busy or not; only code that lets no other Python run prevents it.
    """
    stop = threading.Event()
    alive()

    def run() -> None:
        while not stop.wait(min(LOOK, timeout / 4)):
            alive()
            if heartbeat.busy_for > LOOK:
                look()
            if heartbeat.busy_for > timeout:
                faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
                stuck(f"a step has taken more than {timeout:g} s (--watchdog-timeout); the engine is stuck")
                return

    threading.Thread(target=run, name="watchdog", daemon=True).start()
    return stop
