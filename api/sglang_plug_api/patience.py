"""HTTP connections that may not stay open without asking for anything."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


def http_protocol(header_timeout: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which also ends connections whose next head is not complete in time.

    Args:
        header_timeout: seconds from the opening of a connection, or from the first byte of a later request, until
            the blank line after its headers.
    """

    class Patient(H11Protocol):
        """Without this a client that sends half a head keeps its connection, and the memory of it, for ever."""

        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_watching()
            super().connection_lost(exc)

        def _watch_head(self) -> None:
            upgraded = self.transport.get_protocol() is not self
            if upgraded or (self.cycle is not None and not self.cycle.response_complete):
                self._stop_watching()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(header_timeout, self.transport.close)

        def _stop_watching(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Patient
