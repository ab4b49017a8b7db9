"""HTTP connections that may not stay open without asking for anything, or without taking what they asked for."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from .errors import SHOWN, ApiError
from .job import new_id
from .middleware import REQUEST_ID

UNANSWERED = (h11.IDLE, h11.SEND_RESPONSE)
"""States of a connection in which an answer may begin."""

KEEP_ALIVE = 120
"""Seconds that a connection may wait for its next request. The pools of clients (5 to 90 seconds) and proxies (60 to
75) let go earlier: a request that is sent while the server closes is lost with "connection reset"."""

logger = logging.getLogger(__name__)


def http_protocol(header_timeout: float, send_timeout: float) -> type[asyncio.Protocol]:
    """Uvicorn's protocol, which also gives up connections whose client does not move on.

    Args:
        header_timeout: seconds from the opening of a connection, or from the first byte of a later request, until
            the blank line after its headers.
        send_timeout: seconds in which the client takes none of the bytes that wait for it. It is looked once in that
            time, so it may take twice as long until the connection is gone and its request aborted.
    """

    class WithTimeouts(_Patient):
        """Uvicorn makes instances itself, so what they are given stands here."""

    WithTimeouts.header_timeout, WithTimeouts.send_timeout = header_timeout, send_timeout
    return WithTimeouts


class _Patient(H11Protocol):
    """Without this a client that sends half a head, or never reads, keeps its connection and what it costs."""

    header_timeout: ClassVar[float]
    send_timeout: ClassVar[float]
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive = KEEP_ALIVE
        transport.set_write_buffer_limits(high=0)  # paused exactly while bytes wait here that the system won't take
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._stop_watching_sends()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Tell what cannot be read as HTTP, if the client still waits for an answer, and close."""
        if self.conn.our_state in UNANSWERED:
            refusal = _unreadable(sys.exception(), msg).response()  # the exception that this is called for
            headers = [*refusal.raw_headers, (b"connection", b"close"), (REQUEST_ID.encode(), new_id().encode())]
            phrase = STATUS_PHRASES[refusal.status_code]
            begin = h11.Response(status_code=refusal.status_code, headers=headers, reason=phrase)
            for event in (begin, h11.Data(data=bytes(refusal.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sends()

    def resume_writing(self) -> None:
        self._stop_watching_sends()
        super().resume_writing()

    def _watch_head(self) -> None:
        upgraded = self.transport.get_protocol() is not self
        if upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout, self.transport.close)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_sends(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stop_watching_sends()
        self._stall = self.loop.call_later(self.send_timeout, self._look_at_sends, left)

    def _look_at_sends(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:  # while bytes wait, nothing is written after them
            self._watch_sends()
        else:
            where = ":".join(map(str, self.client or ()))
            logger.info("%s took nothing of its answer for %g seconds: closed", where, self.send_timeout)
            self.transport.abort()  # closing would wait for the client

    def _stop_watching_sends(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None


def _unreadable(reason: BaseException | None, otherwise: str) -> ApiError:
    """What to say of bytes that are no HTTP: 431 if a head is too long, otherwise 400."""
    too_long = getattr(reason, "error_status_hint", None) == 431
    return ApiError(f"this is not valid HTTP: {str(reason or otherwise)[:SHOWN]}", 431 if too_long else 400)
