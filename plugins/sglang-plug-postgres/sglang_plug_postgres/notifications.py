"""Notifications of changed responses, so that readers of events do not have to ask all the time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import psycopg

from sglang_plug import StorageError

from .database import Connection, Database

logger = logging.getLogger(__name__)

LONGEST_WAIT = 1.0
"""Seconds after which a reader looks for events without a notification, which may be lost with its connection."""
RECONNECT = 1.0
"""Seconds between two attempts to connect."""


class Notifications:
    """Wakes the readers of a channel; connected from the first one on.

    Args:
        database: the database of the channel.
        channel: its name. A notification's payload is the id of a response.
    """

    def __init__(self, database: Database, channel: str) -> None:
        self._database, self._channel = database, channel
        self._readers: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def send(self, connection: Connection, id: str) -> None:
        """Notify the readers of ``id`` on all servers when the transaction ends."""
        await connection.execute("SELECT pg_notify(%s, %s)", (self._channel, id))

    @contextlib.contextmanager
    def subscription(self, id: str) -> Iterator[asyncio.Event]:
        """Return an event that is set when ``id`` has changed."""
        changed = asyncio.Event()
        self._readers.setdefault(id, set()).add(changed)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        try:
            yield changed
        finally:
            self._readers[id].discard(changed)
            if not self._readers[id]:
                del self._readers[id]

    async def wait(self, changed: asyncio.Event) -> None:
        """Wait for a change, for at most ``LONGEST_WAIT``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT):
                await changed.wait()

    async def close(self) -> None:
        """End the connection."""
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                async with self._database.listening(self._channel) as connection:
                    self._wake(*self._readers)  # there may have been changes before
                    async for notification in connection.notifies():
                        self._wake(notification.payload)
            except (psycopg.Error, StorageError) as error:
                logger.warning("notifications of PostgreSQL are not received: %s", str(error).strip())
            await asyncio.sleep(RECONNECT)

    def _wake(self, *ids: str) -> None:
        for id in ids:
            for changed in self._readers.get(id, ()):
                changed.set()
