"""How a process of ours ends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import NoReturn

TIME_TO_CLOSE = 2.0
"""Seconds to close in order, if that is under way, once the parent is gone."""


def leave(status: int) -> NoReturn:
    """End this process with ``status`` once other threads and what is registered with ``atexit`` are done.

    The interpreter is not taken apart object by object, which takes about a second where torch is loaded and has no
    effect outside. ``multiprocessing`` ends its children in the same way.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # nobody reads, or it is closed
            pass
    os._exit(status)


def end_with_parent(status: int) -> None:
    """From now on, end this process with ``status`` when its parent, who holds the other end of its standard input, is
    gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 4096):  # not the buffered reader: its lock is fatal when the interpreter ends
            pass
        threading.Event().wait(TIME_TO_CLOSE)
        os._exit(status)

    threading.Thread(target=wait, daemon=True).start()
