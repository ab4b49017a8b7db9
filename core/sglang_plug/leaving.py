"""How a process of ours ends."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from typing import NoReturn


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
