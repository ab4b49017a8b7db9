"""Ending a process of this project: at once after cleanup, or together with its parent."""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

TIME_TO_CLOSE = 2.0
"""Seconds that an orderly shutdown may still take once the parent has ended."""
EXIT_TIMEOUT = 10.0
"""Seconds that other threads and ``atexit`` functions may take, some of which may never end."""


def exit_process(status: int) -> NoReturn:
    """End this process with ``status`` once other threads and ``atexit`` functions are done.

    If they take longer than ``EXIT_TIMEOUT`` seconds, their stacks are written to standard error and the status is 1.
    The interpreter is not finalized object by object, which takes about a second once torch is loaded and has no effect
    outside. ``multiprocessing`` ends its children in the same way.
    """
    faulthandler.dump_traceback_later(EXIT_TIMEOUT, exit=True, file=sys.__stderr__ or sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads, or it is closed
            pass
    os._exit(status)


class ParentWatch:
    """A thread that ends this process when its parent has ended.

    The parent holds the other end of this process's standard input.

    Args:
        status: the exit status in this case.
        before_exit: called before the process ends without returning from its main function.
    """

    def __init__(self, status: int, before_exit: Callable[[], None] = lambda: None) -> None:
        self._status = status
        self._before_exit = before_exit
        threading.Thread(target=self._wait, daemon=True).start()

    def exit(self, status: int) -> NoReturn:
        """End the process at once, from any thread, after ``before_exit``."""
        try:
            self._before_exit()
        finally:
            os._exit(status)

    def _wait(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not the buffered reader: its lock is fatal when the interpreter ends
            pass
        threading.Event().wait(TIME_TO_CLOSE)
        self.exit(self._status)
