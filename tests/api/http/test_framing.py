"""Ambiguous requests are rejected however their bytes are split; others are read as by h11."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_plug_api.http.framing import MAX_HEAD, StrictConnection

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def read(connection: h11.Connection, pieces: list[bytes]) -> tuple[bytes, bool]:
    """Return the body of the first request, and whether it is complete. Raises ``h11.RemoteProtocolError``."""
    body = b""
    for piece in pieces:
        connection.receive_data(piece)
        while (event := connection.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Data):
                body += event.data
            if isinstance(event, h11.EndOfMessage):
                return body, True
    return body, False


def outcome(data: bytes, cuts: list[int]) -> tuple[bytes, bool] | str:
    """Return what a strict connection reads from ``data``, which arrives in parts that end at ``cuts``."""
    offsets = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in zip(offsets, offsets[1:], strict=False) if end > start]
    try:
        return read(StrictConnection(), pieces)
    except h11.RemoteProtocolError:
        return "rejected"


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=4)
EXTENSIONS = st.sampled_from([b"", b";a", b';a="b;c"', b";" + b"x" * 200])
CUTS = st.lists(st.integers(0, 400), max_size=6)


@given(chunks=CHUNKS, extension=EXTENSIONS, cuts=CUTS, trailer=st.sampled_from([b"", b"X-Sum: 1\r\n"]))
def test_a_valid_chunked_body_is_read_however_it_is_cut(
    chunks: list[bytes], extension: bytes, cuts: list[int], trailer: bytes
) -> None:
    body = b"".join(b"%X%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    data = HEAD + body + b"0\r\n" + trailer + b"\r\n" + b"GET / HTTP/1.1\r\n"
    assert outcome(data, cuts) == (b"".join(chunks), True)


PARTS = [b"5", b"\r\n", b"\n", b"\r", b"hello", b"0", b";a", b" ", b"X: y", b"\x00", b"+5", b"1F", b":"]


@given(parts=st.lists(st.sampled_from(PARTS), max_size=12), cuts=CUTS)
def test_what_is_read_of_any_body_is_what_h11_reads(parts: list[bytes], cuts: list[int]) -> None:
    data = HEAD + b"".join(parts)
    result = outcome(data, cuts)
    if result == "rejected":
        return
    assert result == read(h11.Connection(h11.SERVER), [data])


@given(parts=st.lists(st.sampled_from([*PARTS, b"5\r\nhello\r\n", b"0\r\n\r\n"]), max_size=8), cuts=CUTS)
def test_a_complete_body_is_rejected_or_read_however_it_is_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = HEAD + b"".join(parts) + b"\r\n\r\n"
    assert outcome(data, cuts) == outcome(data, list(range(len(data)))) == outcome(data, [])


@given(lines=st.lists(st.sampled_from([b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n"]), min_size=2))
def test_more_than_one_framing_is_rejected(lines: list[bytes]) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + b"".join(lines) + b"\r\n"
    assert outcome(head + b"0\r\n\r\n", []) == "rejected"


def test_after_a_rejected_request_nothing_is_read() -> None:
    connection = StrictConnection()
    connection.receive_data(b"GET / HTTP/1.1\nHost: x\n\n")
    for _ in range(3):
        with pytest.raises(h11.RemoteProtocolError, match="CR LF"):
            connection.next_event()
        connection.receive_data(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")


@pytest.mark.parametrize("pieces", [1, 2, 100])
def test_a_long_head_is_refused_however_it_comes(pieces: int) -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * MAX_HEAD + b"\r\n\r\n"
    size = -(-len(data) // pieces)
    with pytest.raises(h11.RemoteProtocolError) as caught:
        read(StrictConnection(), [data[start : start + size] for start in range(0, len(data), size)])
    assert caught.value.error_status_hint == 431
