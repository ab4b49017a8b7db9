"""Rejection of requests whose end or host two HTTP parsers could read differently.

A proxy and the server that disagree about where a request ends let a client smuggle a second request past the proxy
(RFC 9112, 11.2). h11 accepts several such messages: both ``Content-Length`` and ``Transfer-Encoding``, bare line feeds,
folded headers, chunk extensions with any bytes. They are rejected here before h11 reads them.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

import h11

CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n)")
LENGTH = re.compile(rb"[0-9]{1,19}")
VERSIONS = (b"1.0", b"1.1")
CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(;[\t\x20-\x7e\x80-\xff]*)?")
"""Pattern of a chunk's first line. 15 digits are below 2^60, which no parser reads as a smaller or negative number."""
MAX_HEAD = 64 << 10
"""Largest request line with its headers, in bytes."""
MAX_CHUNK_LINE = 1024
"""Longest first line of a chunk, in bytes."""
MAX_IGNORED = 16 << 10
"""Maximum number of bytes of chunk extensions and trailers of one request, which are ignored."""


class ChunkPart(Enum):
    """The part of a chunked body that the next byte belongs to."""

    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    END = auto()


class ChunkedBody:
    """Checks the bytes of one chunked body as they arrive, more strictly than h11, which decodes them."""

    def __init__(self) -> None:
        self._part = ChunkPart.SIZE
        self._line = b""
        self._remaining = 0
        self._ignored = 0

    def feed(self, data: bytes) -> None:
        """Check the next bytes; bytes after the body's end are ignored. Raises ``h11.RemoteProtocolError``."""
        start = 0
        while start < len(data) and self._part is not ChunkPart.END:
            if self._part is ChunkPart.DATA:
                taken = min(self._remaining, len(data) - start)
                start, self._remaining = start + taken, self._remaining - taken
                if not self._remaining:
                    self._part = ChunkPart.DATA_END
            else:
                start = self._feed_line(data, start)

    def _feed_line(self, data: bytes, start: int) -> int:
        """Take bytes up to the end of the line; return the start of the next part."""
        end = data.find(b"\n", start) + 1
        self._line += data[start : end or start + MAX_CHUNK_LINE + 1]
        if len(self._line) > MAX_CHUNK_LINE:
            raise h11.RemoteProtocolError(f"a line of a chunked body is longer than {MAX_CHUNK_LINE} bytes")
        if not end:
            return len(data)
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise h11.RemoteProtocolError("a line of a chunked body does not end with CR LF")
        self._take_line(line[:-2])
        return end

    def _take_line(self, line: bytes) -> None:
        if self._part is ChunkPart.DATA_END:
            if line:
                raise h11.RemoteProtocolError("a chunk is longer than its size says")
            self._part = ChunkPart.SIZE
        elif self._part is ChunkPart.SIZE:
            match = CHUNK_LINE.fullmatch(line)
            if match is None:
                raise h11.RemoteProtocolError(f"illegal chunk header: {line[:80]!r}")
            self._ignore(len(match[2] or b""))
            self._remaining = int(match[1], 16)
            self._part = ChunkPart.DATA if self._remaining else ChunkPart.TRAILER
        elif not line:
            self._part = ChunkPart.END
        else:
            _check_line(line, "a trailer")
            self._ignore(len(line))

    def _ignore(self, count: int) -> None:
        self._ignored += count
        if self._ignored > MAX_IGNORED:
            raise h11.RemoteProtocolError(f"chunk extensions and trailers are longer than {MAX_IGNORED} bytes")


class StrictConnection(h11.Connection):
    """An h11 server connection that rejects ambiguous requests; after the first one it reads nothing more."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD)
        self._body: ChunkedBody | None = None
        self._fault: h11.RemoteProtocolError | None = None

    def receive_data(self, data: bytes) -> None:
        """Receive data as h11 does, and check a chunked body."""
        super().receive_data(data)
        if self._body is not None and self._fault is None:
            self._check_body(self._body, data)

    def next_event(self) -> Any:
        """Return h11's next event. Raises ``h11.RemoteProtocolError`` for ambiguous requests as well."""
        if self._fault is None and self.their_state is h11.IDLE:
            self._body = None
            self._check_head()
        if self._fault is not None:
            raise self._fault
        event = super().next_event()
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            self._body = ChunkedBody()
            self._check_body(self._body, self.trailing_data[0])
        return event

    def _check_body(self, body: ChunkedBody, data: bytes) -> None:
        try:
            body.feed(data)
        except h11.RemoteProtocolError as fault:
            self._fault = fault

    def _check_head(self) -> None:
        """Check a request's head once all of it has arrived; h11 also accepts bare line feeds as its end."""
        data, _ = self.trailing_data
        if b"\n\r\n" not in data and b"\n\n" not in data:
            return
        try:
            check_head(data.partition(b"\r\n\r\n")[0])
        except h11.RemoteProtocolError as fault:
            self._fault = fault


def check_head(head: bytes) -> None:
    """Check a request line and its headers, without the empty line. Raises ``h11.RemoteProtocolError``."""
    if len(head) > MAX_HEAD:
        raise h11.RemoteProtocolError(f"the headers are longer than {MAX_HEAD} bytes", error_status_hint=431)
    if BARE_LINE_END.search(head):
        raise h11.RemoteProtocolError("a line of the headers does not end with CR LF")
    request_line, *lines = head.split(b"\r\n")
    if CONTROL.search(request_line):
        raise h11.RemoteProtocolError("illegal request line: it has control characters")
    target, _, version = request_line.partition(b" ")[2].rpartition(b" HTTP/")
    if version not in VERSIONS:
        if re.fullmatch(rb"[0-9]\.[0-9]", version):
            raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1 are served", error_status_hint=505)
        raise h11.RemoteProtocolError(f"illegal request line: {request_line[:80]!r}")
    if not target.startswith(b"/") and target != b"*":
        raise h11.RemoteProtocolError("the request target must be a path that begins with '/'")
    headers = [_check_line(line, "a header") for line in lines]
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    _check_framing(lengths, codings, version)


def _check_framing(lengths: list[bytes], codings: list[bytes], version: bytes) -> None:
    """Raise unless the request has one plain length, or one ``chunked``, or neither (RFC 9112, 6.1 to 6.3)."""
    if lengths and codings:
        raise h11.RemoteProtocolError("a request must not have both Content-Length and Transfer-Encoding")
    if len(lengths) > 1 or len(codings) > 1:
        raise h11.RemoteProtocolError(f"more than one {'Content-Length' if lengths else 'Transfer-Encoding'} header")
    if lengths and not LENGTH.fullmatch(lengths[0]):
        raise h11.RemoteProtocolError("bad Content-Length: it must be one number of decimal digits")
    if codings and version == b"1.0":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
    if codings and codings[0].lower() != b"chunked":
        raise h11.RemoteProtocolError("only Transfer-Encoding: chunked is supported")


def _check_line(line: bytes, kind: str) -> tuple[bytes, bytes]:
    """Return the lower-case name and the value of a header line. Raises ``h11.RemoteProtocolError``."""
    if line[:1] in (b" ", b"\t"):
        raise h11.RemoteProtocolError(f"{kind} is folded over several lines")
    if CONTROL.search(line) or b"\r" in line:
        raise h11.RemoteProtocolError(f"{kind} has control characters")
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip(b" \t"):
        raise h11.RemoteProtocolError(f"illegal header line: {line[:80]!r}")
    return name.lower(), value.strip(b" \t")
