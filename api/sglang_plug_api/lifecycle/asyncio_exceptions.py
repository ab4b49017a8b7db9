"""Exception handler of the event loop that does not flood the log."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

NO_RESOURCE = "socket.accept() out of system resource"
"""Message that asyncio logs, with a traceback, for every waiting connection: thousands of times a second."""
LOG_INTERVAL = 10.0
"""Shortest time between two lines about it, in seconds."""


class AsyncioExceptions:
    """Exception handler of an event loop that reports only now and then that no connections can be accepted.

    Args:
        now: returns the time in seconds, by a clock that is never set back.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._last_logged = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Handle ``context`` as asyncio asks for it."""
        if context.get("message") != NO_RESOURCE:
            loop.default_exception_handler(context)
            return
        now = self._now()
        if now - self._last_logged >= LOG_INTERVAL:
            self._last_logged = now
            reason = context.get("exception")
            logger.error("New connections wait and cannot be accepted: %s; raise the limit (ulimit -n)", reason)
