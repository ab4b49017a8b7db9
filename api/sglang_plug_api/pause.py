"""Holding new requests back while something needs the engine idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

POLL = 0.01


class Pause:
    """A gate that is open except while somebody holds it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._holder = asyncio.Lock()

    async def passed(self) -> None:
        """Returns when the gate is open."""
        await self._open.wait()

    @asynccontextmanager
    async def idle(self, in_flight: Callable[[], int], timeout: float) -> AsyncIterator[None]:
        """The gate is closed and nothing is in flight. One holder at a time.

        Raises ``TimeoutError`` if what was in flight did not end within ``timeout`` seconds; the gate is open then.
        """
        async with self._holder:
            self._open.clear()
            try:
                async with asyncio.timeout(timeout):
                    while in_flight():
                        await asyncio.sleep(POLL)
                yield
            finally:
                self._open.set()
