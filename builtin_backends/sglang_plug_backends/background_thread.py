"""Threads whose work may wait for that of the step loop."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

NICENESS = 10
"""Added to the niceness of the process: while another thread computes, such a thread gets about a tenth of a core."""


def background_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread, not started yet, that calls ``run`` with a low priority.

    On a CPU, all threads that compute a step wait for the slowest of them, which is the one that shares its core. The
    priority is that of a single thread on Linux only; elsewhere it is not changed.
    """

    def run_with_low_priority() -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                thread = threading.get_native_id()
                os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
        run()

    return threading.Thread(target=run_with_low_priority, name=name, daemon=True)
