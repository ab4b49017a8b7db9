"""A limit of open connections that idle clients cannot use up."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

logger = logging.getLogger(__name__)


class ConnectionLimit:
    """Counts connections; over the limit, the connection that has waited longest for its client is closed.

    Args:
        limit: connections that may be open at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open = 0
        self._warned = False
        self._waiting: OrderedDict[object, Callable[[], None]] = OrderedDict()

    def opened(self, connection: object, close: Callable[[], None]) -> bool:
        """Count a new connection that waits for its client. Return False if it must be refused: all others are busy.

        Args:
            connection: its identity.
            close: closes the connection at once.
        """
        self._open += 1
        full = self._open > self._limit
        if full and not self._warned:
            self._warned = True
            logger.warning(
                "the limit of %d connections (--max-connections) is reached: idle ones are closed", self._limit
            )
        if full and not self._waiting:
            return False
        if full:
            _, close_oldest = self._waiting.popitem(last=False)
            close_oldest()
        self._waiting[connection] = close
        return True

    def mark_waiting(self, connection: object, close: Callable[[], None]) -> None:
        """Note that the connection waits for a request or the rest of one; its position in the queue stays the same."""
        self._waiting.setdefault(connection, close)

    def mark_busy(self, connection: object) -> None:
        """Note that the connection has received a whole request."""
        self._waiting.pop(connection, None)

    def closed(self, connection: object) -> None:
        """Forget a connection that was closed."""
        self._open -= 1
        self._waiting.pop(connection, None)
