"""Shutdown of the server: signals at any time, and a deadline after which the process is ended by force."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sglang_plug.system.child_process import STOP_SIGNALS

logger = logging.getLogger(__name__)

FORCED_EXIT = 1
SHUTDOWN_GRACE = 10.0
"""Seconds for the server to end after the last request has ended or was aborted."""
REPORT_TIMEOUT = 2.0
"""Seconds for reporting the remaining tasks; the reader of standard error may be stuck."""
POLL = 0.1


def _nothing() -> None:
    return None


class Shutdown:
    """Handles SIGINT and SIGTERM inside ``with``, and ends the process by force if it then takes too long.

    Each signal calls the callback of ``on_signal`` once, in the event loop. The deadline does not need the event loop,
    which may be the part that hangs.
    """

    def __init__(self) -> None:
        self.signals = 0
        """Number of signals so far."""
        self.drain_timeout = 0.0
        """Seconds for requests in flight after the first signal; 0 before the server runs."""
        self.kill: Callable[[], None] = _nothing
        """Ends the engine's process at once, from any thread."""
        self._first = signal.SIGTERM
        self._dispatched = 0
        self._callback: Callable[[], Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline = math.inf
        self._watch: threading.Thread | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Shutdown:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline = math.inf
        for number, handler in self._before.items():  # a further signal must not interrupt an orderly end
            signal.signal(number, signal.SIG_IGN if self.signals else handler)

    @property
    def exit_code(self) -> int:
        """Exit code, as shells define it, of a process that is stopped before the server runs."""
        return 128 + self._first

    def stop(self) -> None:
        """Stop the server as SIGTERM does, from any thread."""
        self._receive(signal.SIGTERM, None)

    def on_signal(self, callback: Callable[[], Any]) -> None:
        """Call ``callback`` in the running event loop for each signal from now on, and for earlier unhandled ones."""
        self._loop, self._callback = asyncio.get_running_loop(), callback
        self._dispatch()

    def expect_end(self, seconds: float = SHUTDOWN_GRACE) -> None:
        """End the process by force unless the ``with`` block ends within ``seconds``, or an earlier deadline.

        Takes no lock, since a signal handler may be interrupted by another.
        """
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        if self._watch is None:
            self._watch = threading.Thread(target=self._exit_after_deadline, name="shutdown-deadline", daemon=True)
            self._watch.start()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self.signals:
            self._first = signal.Signals(number)
        self.signals += 1
        self.expect_end(SHUTDOWN_GRACE + (self.drain_timeout if self.signals == 1 else 0.0))
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process is about to end
                self._loop.call_soon_threadsafe(self._dispatch)

    def _dispatch(self) -> None:
        while self._callback is not None and self._dispatched < self.signals:
            self._dispatched += 1
            self._callback()

    def _exit_after_deadline(self) -> None:
        while (remaining := self._deadline - time.monotonic()) > 0:
            if remaining == math.inf:  # the process ends in time
                return
            time.sleep(min(remaining, POLL))
        report = threading.Thread(target=self._report, daemon=True)
        report.start()
        report.join(REPORT_TIMEOUT)
        self.kill()
        os._exit(FORCED_EXIT)

    def _report(self) -> None:
        tasks = [] if self._loop is None else sorted(_describe(task) for task in asyncio.all_tasks(self._loop))
        logger.critical(
            "The server does not end and is ended by force; tasks that are left: %s; the stacks of all threads follow",
            ", ".join(tasks) or "none",
        )
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)


def _describe(task: asyncio.Task[Any]) -> str:
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})"
