"""A gate that holds new requests back while an administrative call needs the engine idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

POLL_SECONDS = 0.01


class AdmissionGate:
    """A gate that is open unless a caller closed it."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._holder = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """True unless new requests wait."""
        return self._open.is_set()

    async def wait_open(self) -> None:
        """Wait until the gate is open."""
        await self._open.wait()

    @asynccontextmanager
    async def closed_and_idle(self, in_flight: Callable[[], int], timeout: float) -> AsyncIterator[None]:
        """Close the gate and enter the block once no request is in flight. One caller at a time.

        Raises ``TimeoutError`` if the requests in flight did not end within ``timeout`` seconds; the gate is open then.
        """
        async with self._holder:
            self._open.clear()
            try:
                async with asyncio.timeout(timeout):
                    while in_flight():
                        await asyncio.sleep(POLL_SECONDS)
                yield
            finally:
                self._open.set()
