"""The watchdog, which turns a stuck step into an error and an exit instead of a hang.

Step extensions take part in its thread, where an error of one must not end the watchdog.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang_plug.contracts.extension.sampling_phases import BlockingRequest
    from sglang_plug.engine.extensions.server_points import WatchdogPoints

logger = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Seconds between two checks of the engine."""


class Heartbeat:
    """Records the start of the engine's current step, whose duration is that of its context."""

    def __init__(self) -> None:
        self._since: float | None = None

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self._since = None

    @property
    def busy_for(self) -> float:
        """Seconds that the current step has taken; 0 between steps."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since


def watch(
    heartbeat: Heartbeat,
    timeout: float,
    stuck: Callable[[str], None],
    *,
    check: Callable[[], None] = lambda: None,
    alive: Callable[[], None] = lambda: None,
) -> threading.Event:
    """Call ``stuck`` once, from another thread, when a step takes longer than ``timeout`` seconds.

    Writes every thread's stack to standard error first. Set the returned event to stop watching.

    Args:
        heartbeat: the engine's heartbeat.
        timeout: seconds that a step may take.
        stuck: called with the description of the problem.
        check: called every second while a step takes longer than one second.
        alive: called now and every second, busy or not; only code that blocks all other Python threads prevents it.
    """
    stop = threading.Event()
    alive()

    def run() -> None:
        while not stop.wait(min(CHECK_SECONDS, timeout / 4)):
            alive()
            if heartbeat.busy_for > CHECK_SECONDS:
                check()
            if heartbeat.busy_for > timeout:
                faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
                stuck(f"a step has taken more than {timeout:g} s (--watchdog-timeout); the engine is stuck")
                return

    threading.Thread(target=run, name="watchdog", daemon=True).start()
    return stop


def run_checks(extensions: WatchdogPoints) -> None:
    """Let the extensions interrupt what takes too long in a step."""
    for check in extensions.check_step:
        try:
            check()
        except Exception:
            logger.exception("a step extension failed in the watchdog's thread")


def find_blocking_request(extensions: WatchdogPoints) -> BlockingRequest | None:
    """Return the request that blocks a step, if an extension knows it."""
    for blocking_request in extensions.blocking_request:
        try:
            request = blocking_request()
        except Exception:
            logger.exception("a step extension failed in the watchdog's thread")
            continue
        if request is not None:
            return request
    return None
