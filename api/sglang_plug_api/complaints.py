"""What the event loop complains of, without filling the log."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

logger = logging.getLogger(__name__)

NO_RESOURCE = "socket.accept() out of system resource"
"""What asyncio says, with a traceback, for every connection that may be waiting: thousands of times a second."""
PAUSE = 10.0
"""Seconds between two lines about it."""


class Complaints:
    """A loop's exception handler that tells but now and then that connections cannot be taken."""

    def __init__(self) -> None:
        self._told = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """As asyncio calls it."""
        if context.get("message") != NO_RESOURCE:
            loop.default_exception_handler(context)
            return
        now = time.monotonic()
        if now - self._told >= PAUSE:
            self._told = now
            reason = context.get("exception")
            logger.error("New connections wait, as none can be taken: %s; raise the limit (ulimit -n)", reason)
