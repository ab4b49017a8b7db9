"""Requests whose end is ambiguous get one refusal and a closed connection: nothing smuggled behind them is answered."""

from __future__ import annotations

import json
import re
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .servers import TIMEOUT

SMUGGLED = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b'{"text": "Hi", "sampling_params": {"max_new_tokens": 1}}'
FIELDS = b"Host: localhost\r\nContent-Type: application/json\r\n"
START = b"POST /generate HTTP/1.1\r\n" + FIELDS
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = b"%d" % len(BODY)
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def with_length(*values: bytes) -> bytes:
    """Return a request with these ``Content-Length`` headers."""
    return START + b"".join(b"Content-Length: %s\r\n" % value for value in values) + b"\r\n" + BODY


def with_coding(*values: bytes) -> bytes:
    """Return a chunked request with these ``Transfer-Encoding`` headers."""
    return START + b"".join(b"Transfer-Encoding: %s\r\n" % value for value in values) + b"\r\n" + CHUNK + b"0\r\n\r\n"


def with_header(line: bytes) -> bytes:
    """Return a request with a length and one more header line."""
    return START + line + b"\r\nContent-Length: " + LENGTH + b"\r\n\r\n" + BODY


def with_chunk_line(line: bytes) -> bytes:
    """Return a chunked request whose first chunk begins with ``line``."""
    return CHUNKED + line + b"\r\n" + BODY + b"\r\n0\r\n\r\n"


def with_target(target: bytes, host: bytes = b"localhost") -> bytes:
    """Return a request for ``target``."""
    return b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (target, host)


SIZE = b"%x" % len(BODY)
AMBIGUOUS = {
    "length and coding": START + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "coding and length": START + b"Transfer-Encoding: chunked\r\nContent-Length: " + LENGTH + b"\r\n\r\n0\r\n\r\n",
    "length and another coding": START + b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "lengths that differ": with_length(LENGTH, b"0"),
    "equal lengths": with_length(LENGTH, LENGTH),
    "list of equal lengths": with_length(LENGTH + b", " + LENGTH),
    "length with plus": with_length(b"+" + LENGTH),
    "negative length": with_length(b"-1"),
    "hexadecimal length": with_length(b"0x" + SIZE),
    "length with underscore": with_length(b"5_6"),
    "length with space inside": with_length(b"5 6"),
    "length of other digits": with_length("٥".encode()),
    "empty length": with_length(b""),
    "endless length": with_length(b"9" * 30),
    "length with vertical tab": with_length(b"\x0b" + LENGTH),
    **{
        f"coding {value!r}": with_coding(value)
        for value in (
            b"xchunked", b"chunked, chunked", b"gzip, chunked", b"chunked, identity", b"identity", b"", b"chunked;q=1",
            b"\x0bchunked", b"chunked\x00", b'"chunked"', b"chunked,", b"cHuNkEd x",
        )
    },
    "coding twice": with_coding(b"chunked", b"chunked"),
    "coding and identity": with_coding(b"chunked", b"identity"),
    "coding in HTTP/1.0": with_coding(b"chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
    "space before colon": with_header(b"Transfer-Encoding : chunked"),
    "tab before colon": with_header(b"Transfer-Encoding\t: chunked"),
    "no colon": with_header(b"Transfer-Encoding"),
    "empty name": with_header(b": chunked"),
    "folded header": with_header(b"X-Note: one\r\n two"),
    "folded coding": with_header(b"Transfer-Encoding:\r\n chunked"),
    "folded first header": START.replace(b"\r\nHost", b"\r\n Host") + b"\r\n",
    "bare CR in a header": with_header(b"X-Note: one\rTransfer-Encoding: chunked"),
    "CR before CR LF": with_header(b"X-Note: one\r"),
    "bare LF in a header": with_header(b"X-Note: one\nTransfer-Encoding: chunked"),
    "bare LFs": with_length(LENGTH).replace(b"\r\n", b"\n"),
    "bare LF ends the headers": START + b"Content-Length: " + LENGTH + b"\n\r\n" + BODY,
    "NUL in a value": with_header(b"X-Note: one\x00two"),
    "NUL in a name": with_header(b"X-\x00Note: one"),
    "control character": with_header(b"X-Note: one\x01two"),
    "bare CR in the request line": with_target(b"/ping").replace(b" HTTP", b"\r HTTP", 1),
    "tab in the request line": with_target(b"/ping").replace(b"GET ", b"GET\t"),
    "two spaces in the request line": with_target(b"/ping").replace(b"GET ", b"GET  "),
    "no version": b"GET /ping\r\nHost: localhost\r\n\r\n",
    "absolute target": with_target(b"http://evil.example/ping"),
    "absolute target of the same host": with_target(b"http://localhost/ping"),
    "authority as target": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /ping HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /ping HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "chunk size with plus": with_chunk_line(b"+" + SIZE),
    "negative chunk size": with_chunk_line(b"-1"),
    "chunk size with 0x": with_chunk_line(b"0x" + SIZE),
    "chunk size with underscore": with_chunk_line(b"3_8"),
    "space before chunk size": with_chunk_line(b" " + SIZE),
    "space after chunk size": with_chunk_line(SIZE + b" "),
    "space before extension": with_chunk_line(SIZE + b" ;a=b"),
    "chunk size overflows 64 bits": with_chunk_line(b"1" + b"0" * 14 + SIZE),
    "chunk size of seventeen F": with_chunk_line(b"F" * 17),
    "empty chunk size": with_chunk_line(b""),
    "bare CR in an extension": with_chunk_line(SIZE + b";a\r0"),
    "bare LF ends a chunk size": CHUNKED + SIZE + b"\n" + BODY + b"\r\n0\r\n\r\n",
    "bare LF in an extension": with_chunk_line(SIZE + b";a\nb"),
    "NUL in an extension": with_chunk_line(SIZE + b";a\x00"),
    "endless extension": with_chunk_line(SIZE + b";a=" + b"x" * 5000),
    "extensions without end": CHUNKED + b"".join(b"1;%s\r\n \r\n" % (b"x" * 1000) for _ in range(20)) + b"0\r\n\r\n",
    "chunk longer than its size": CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "bare LF after a chunk": CHUNKED + SIZE + b"\r\n" + BODY + b"\n0\r\n\r\n",
    "folded trailer": CHUNKED + CHUNK + b"0\r\nX: a\r\n b\r\n\r\n",
    "bare LF in the trailers": CHUNKED + CHUNK + b"0\r\nX: a\n\r\n\r\n",
    "endless trailers": CHUNKED + CHUNK + b"0\r\n" + b"X: %s\r\n" % (b"a" * 900) * 20 + b"\r\n",
}  # fmt: skip


def exchange(server: Any, data: bytes, pieces: int = 1) -> bytes:
    """Send bytes, and return everything that the server answers until it closes the connection."""
    response = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = -(-len(data) // pieces)
        try:
            for start in range(0, len(data), size):
                connection.sendall(data[start : start + size])
            while piece := connection.recv(65536):
                response += piece
        except ConnectionError:
            pass  # the server closed the connection with unread bytes after its answer
    return response


def check_refused_once(answer: bytes) -> None:
    """Check that the only answer is one 4xx in the error format of the server."""
    (status,) = STATUS_LINE.findall(answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status.startswith(b"4")
    assert b"connection: close" in head.lower() and b"application/json" in head
    assert json.loads(body)["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_an_ambiguous_request_gets_one_refusal_and_the_connection_closes(server: Any, request_bytes: bytes) -> None:
    check_refused_once(exchange(server, request_bytes + SMUGGLED))


@pytest.mark.parametrize("name", ["length and coding", "bare LFs", "folded coding", "bare CR in an extension"])
def test_an_ambiguous_request_in_many_packets_is_refused_too(server: Any, name: str) -> None:
    check_refused_once(exchange(server, AMBIGUOUS[name] + SMUGGLED, pieces=40))


CLOSE = SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
VALID = {
    "length": with_length(LENGTH),
    "length with blanks around": with_length(b" \t" + LENGTH + b" \t"),
    "coding": with_coding(b"chunked"),
    "coding in capitals": with_coding(b"CHUNKED"),
    "coding with blanks around": with_coding(b" chunked \t"),
    "extensions": with_chunk_line(SIZE + b';a=b;c="d;e"'),
    "leading zeros": with_chunk_line(b"000" + SIZE),
    "trailers": CHUNKED + CHUNK + b"0\r\nX-Sum: 1\r\nContent-Length: 5\r\n\r\n",
    "body awaited": with_length(LENGTH).replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"),
    "upgrade to websocket": with_header(b"Connection: upgrade\r\nUpgrade: websocket"),
    "upgrade to HTTP/2": with_header(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM"),
}


@pytest.mark.parametrize("request_bytes", VALID.values(), ids=VALID.keys())
def test_pipelined_requests_are_answered_in_order(server: Any, request_bytes: bytes) -> None:
    answer = exchange(server, request_bytes * 3 + CLOSE)
    assert [status for status in STATUS_LINE.findall(answer) if status != b"100"] == [b"200"] * 4


def test_a_method_in_small_letters_is_another_method(server: Any) -> None:
    answer = exchange(server, b"get /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" + CLOSE)
    assert STATUS_LINE.findall(answer) == [b"405", b"200"]


def test_bytes_behind_a_body_are_another_request(server: Any) -> None:
    answer = exchange(server, with_length(LENGTH) + b"x\r\n" + SMUGGLED)
    assert STATUS_LINE.findall(answer) == [b"200", b"400"]


def test_other_versions_are_not_served(server: Any) -> None:
    for version in (b"2.0", b"0.9", b"1.2"):
        answer = exchange(server, with_target(b"/ping").replace(b"HTTP/1.1", b"HTTP/" + version) + SMUGGLED)
        assert STATUS_LINE.findall(answer) == [b"505"], version


def test_a_fault_in_a_body_whose_route_is_at_work_is_answered_once_and_logged_as_no_error(server: Any) -> None:
    before = len(server.log)
    data = b"POST /ping HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + SMUGGLED
    check_refused_once(exchange(server, data))
    assert "Traceback" not in server.log[before:]


BLANKS = st.sampled_from([b"", b" ", b"\t", b"\r", b"\n", b"\x00", b"\x0b", b"\r\n "])
NAMES = st.sampled_from([b"Content-Length", b"content-length", b"Transfer-Encoding", b"TRANSFER-ENCODING", b"X-Note"])
VALUES = st.sampled_from([b"0", b"5", LENGTH, b"+5", b"chunked", b"xchunked", b"chunked, identity", b"5, 5", b""])
LINES = st.builds(lambda *parts: b"".join(parts), NAMES, BLANKS, st.just(b":"), BLANKS, VALUES, BLANKS)
ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"])
BODIES = st.sampled_from([BODY, CHUNK + b"0\r\n\r\n", b"0\r\n\r\n", SIZE + b";\r\n" + BODY + b"\r\n0\r\n\r\n", b""])
RANDOM_EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@settings(RANDOM_EXAMPLES)
@given(lines=st.lists(st.tuples(LINES, ENDS), max_size=3), body=BODIES, pieces=st.integers(1, 5))
def test_random_framings_never_get_more_answers_than_requests(
    server: Any, lines: list[tuple[bytes, bytes]], body: bytes, pieces: int
) -> None:
    head = START + b"".join(line + end for line, end in lines) + b"\r\n"
    statuses = STATUS_LINE.findall(exchange(server, head + body + CLOSE, pieces))
    refused = [index for index, status in enumerate(statuses) if status.startswith(b"4")]
    framings = [line for line, _ in lines if line.lower().startswith((b"content-length", b"transfer-encoding"))]
    plain = all(end == b"\r\n" for _, end in lines) and not any(
        re.search(rb"[\r\n\0\x0b]|[ \t]:", line) for line, _ in lines
    )
    if len(framings) > 1 or not plain:
        assert len(statuses) == 1 and refused == [0], statuses
    else:
        assert len(statuses) <= 3, statuses
