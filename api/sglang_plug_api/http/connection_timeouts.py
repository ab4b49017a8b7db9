"""Timeouts for HTTP connections whose client sends no request or does not read its response."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from sglang_plug_api.answers.errors import RETRY_AFTER, SHOWN, ApiError
from sglang_plug_api.text.job import new_id

from .connection_limit import ConnectionLimit
from .framing import StrictConnection
from .middleware import REQUEST_ID

UNANSWERED = (h11.IDLE, h11.SEND_RESPONSE)
"""States of a connection in which a response may begin."""

KEEP_ALIVE = 120
"""Seconds that a connection may wait for its next request. Client pools (5 to 90 seconds) and proxies (60 to 75) give
up earlier: a request that is sent while the server closes the connection is lost with "connection reset"."""
ALL_UNSENT = 2**31 - 1
MAX_UNSENT = 16 << 10
"""Unsent bytes that the system buffers for a client that does not read. Its default is megabytes, thousands of tokens,
before the server notices. Bytes in flight to the client are not counted, so the limit slows no reading client."""
LINGER = 2.0
"""Seconds in which bytes after a refused request are read and dropped: the system resets a connection that is closed
with unread bytes, and the client would lose the response."""

logger = logging.getLogger(__name__)


def http_protocol(header_timeout: float, send_timeout: float, limit: ConnectionLimit) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol class with timeouts for clients that make no progress.

    Args:
        header_timeout: seconds from the opening of a connection, or from the first byte of a later request, until
            the blank line after its headers.
        send_timeout: seconds in which the client reads none of the bytes that wait for it. The check runs once per
            that time, so it may take twice as long until the connection is closed and its request aborted.
        limit: counts the connections of the server.
    """

    class WithTimeouts(TimeoutProtocol):
        """The protocol class with its settings; uvicorn creates the instances itself."""

    WithTimeouts.header_timeout, WithTimeouts.send_timeout = header_timeout, send_timeout
    WithTimeouts.limit = limit
    return WithTimeouts


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes connections of clients that send half a request or never read the response."""

    header_timeout: ClassVar[float]
    send_timeout: ClassVar[float]
    limit: ClassVar[ConnectionLimit]
    _deadline: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _refused = False
    """True once a request was not valid HTTP: all bytes after it are dropped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = StrictConnection()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive = KEEP_ALIVE
        transport.set_write_buffer_limits(high=0)  # paused exactly while bytes wait here that the system does not take
        _limit_unsent(transport, MAX_UNSENT)
        self._watch_headers()
        if not self.limit.opened(self, transport.abort):
            headers = {"retry-after": str(RETRY_AFTER)}
            self._refuse(ApiError("too many requests are in progress; try again later", 503, headers=headers))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        super().data_received(data)
        self._watch_headers()
        self._update_limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        self._stop_watching_sends()
        self.limit.closed(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not valid HTTP, if the client still waits for a response, and close."""
        if self.cycle is not None and not self.cycle.response_complete:  # the running route must not answer as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._refuse(_malformed(sys.exception(), msg))  # the exception that is being handled
        self.transport.write_eof()
        self._stop_watching()
        self._deadline = self.loop.call_later(LINGER, self.transport.close)

    def _refuse(self, refusal: ApiError) -> None:
        """Send ``refusal`` unless a response has begun, and read no further request."""
        self._refused = True
        if self.conn.our_state not in UNANSWERED:
            return
        answer = refusal.response()
        headers = [*answer.raw_headers, (b"connection", b"close"), (REQUEST_ID.encode(), new_id().encode())]
        begin = h11.Response(status_code=answer.status_code, headers=headers, reason=STATUS_PHRASES[answer.status_code])
        for event in (begin, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))

    def _update_limit(self) -> None:
        """Tell the connection limit whether this connection waits for its client, and may be closed."""
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self.limit.mark_waiting(self, self.transport.abort)
        else:
            self.limit.mark_busy(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sends()

    def resume_writing(self) -> None:
        self._stop_watching_sends()
        super().resume_writing()

    def _watch_headers(self) -> None:
        if self._refused:
            return
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
        unsent = self.transport.get_write_buffer_size()
        self._stop_watching_sends()
        self._stall = self.loop.call_later(self.send_timeout, self._check_sends, unsent)

    def _check_sends(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:  # while bytes wait, nothing is written after them
            self._watch_sends()
        else:
            client = ":".join(map(str, self.client or ()))
            logger.info("%s read nothing of its response for %g seconds: closed", client, self.send_timeout)
            self.transport.abort()  # closing would wait for the client

    def _stop_watching_sends(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def lift_unsent_limit(self) -> None:
        """Let the system buffer all unsent bytes, so that clients get the end of their response at shutdown."""
        _limit_unsent(self.transport, ALL_UNSENT)


def _limit_unsent(transport: asyncio.BaseTransport, limit: int) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(AttributeError, OSError):  # not every system has this
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, limit)


def _malformed(reason: BaseException | None, otherwise: str) -> ApiError:
    """Return the refusal of bytes that are not valid HTTP: 400, or 431 or 505 if the parser says so."""
    hint = getattr(reason, "error_status_hint", None)
    return ApiError(f"this is not valid HTTP: {str(reason or otherwise)[:SHOWN]}", hint if hint in (431, 505) else 400)
