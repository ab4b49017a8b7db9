"""Parsing of uploads: multipart/form-data that is streamed to the store, with a limit for every part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from fastapi import Request
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from sglang_plug import ContentWriter
from sglang_plug_api.answers.errors import ApiError

MAX_PARTS = 16
MAX_FIELD_BYTES = 1024
MAX_FILENAME = 256
MAX_BOUNDARY = 256
OVERHEAD = MAX_PARTS * 8192
"""Maximum number of bytes of a body besides the file: boundaries, headers, fields."""
WRITE_BYTES = 1 << 20
"""File bytes that are collected before they are written."""
EXTENDED_FILENAME = re.compile(rb"""filename\*\s*=\s*"?([\w-]+)'[^']*'([^";\s]+)""", re.IGNORECASE)
NO_FILENAME = "the part 'file' has no filename, so it is text and not a file; with curl write -F file=@NAME, with the @"


@dataclass(slots=True)
class Form:
    """The parts of a form besides the file's content."""

    filename: str | None = None
    """Name of the file; ``None`` until its part begins."""
    fields: dict[str, str] = field(default_factory=dict)


class UploadRoom:
    """Limits the bytes of uploads that are in progress, which the store does not count yet.

    Args:
        max_bytes: maximum number of bytes of all of them together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._used = max_bytes, 0

    @contextmanager
    def upload(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes room for so many bytes, which is free again when the block ends.

        The function raises ``ApiError`` 413 if other uploads leave no room. One that is alone is the store's to refuse,
        which says how much is stored.
        """
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self._used > taken and self._used + count > self._max_bytes:
                raise ApiError(
                    f"uploads in progress have {self._max_bytes} bytes, the limit of --max-storage-bytes; try again "
                    "later",
                    413,
                    code="storage_full",
                )
            self._used += count
            taken += count

        try:
            yield take
        finally:
            self._used -= taken


async def receive_file(request: Request, file: ContentWriter, max_bytes: int, take_room: Callable[[int], None]) -> Form:
    """Write the part ``file`` to ``file``; return the other parts.

    ``take_room`` is called before bytes are written. Raises its error and ``ApiError``: 415 for another content type,
    400 for a broken body, 413 for a part that is too large.
    """

    async def write() -> None:
        content = parts.take()
        take_room(len(content))
        await file.write(content)

    parts = _Parts(max_bytes)
    parser = MultipartParser(_boundary(request), parts.callbacks())  # type: ignore[arg-type]
    try:
        async for chunk in request.stream():
            parser.write(chunk)
            if len(parts.content) >= WRITE_BYTES:
                await write()
        parser.finalize()
    except MultipartParseError as error:
        raise ApiError(f"the body is not valid multipart/form-data: {str(error)[:200]}") from None
    if not parts.ended:
        raise ApiError("the body ends before its last boundary")
    if parts.form.filename is None:
        raise ApiError("the part 'file' is missing", param="file")
    await write()
    return parts.form


def _boundary(request: Request) -> bytes:
    headers = request.headers
    if ("origin" in headers or "sec-fetch-site" in headers) and "authorization" not in headers:
        # a page can make a browser send a form anywhere, but not with this header
        raise ApiError("a browser must send an Authorization header with a form", 415)
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind.lower() != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ApiError("a file is sent as multipart/form-data, with a boundary", 415)
    return boundary


def _filename(disposition: bytes, options: Mapping[bytes, bytes]) -> str | None:
    """Return the filename of a part; ``None`` if it is a field of text.

    RFC 7578 forbids ``filename*``, but some clients use it for names that are not ASCII.
    """
    if b"filename" in options:
        return options[b"filename"].decode("utf-8", "replace")
    extended = EXTENDED_FILENAME.search(disposition)
    if extended is None:
        return None
    charset = "latin-1" if extended[1].lower() == b"iso-8859-1" else "utf-8"  # RFC 5987 has no others
    return unquote(extended[2].decode("latin-1"), charset, "replace")


class _Parts:
    """Collects the parts that the parser reports."""

    def __init__(self, max_bytes: int) -> None:
        self.form = Form()
        self.content = bytearray()
        self.ended = False
        self._max_bytes = max_bytes
        self._file_bytes = 0
        self._count = 0
        self._header = bytearray(), bytearray()
        self._disposition = b""
        self._name = ""
        self._value = bytearray()

    def callbacks(self) -> dict[str, Any]:
        """Return the callbacks for the parser."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._open,
            "on_part_data": self._data,
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def take(self) -> bytearray:
        """Return the file content that has arrived since the last call."""
        content, self.content = self.content, bytearray()
        return content

    def _begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise ApiError(f"the form has more than {MAX_PARTS} parts", 413)
        self._disposition = b""
        self._name = ""
        self._value = bytearray()

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = bytearray(), bytearray()

    def _open(self) -> None:
        kind, options = parse_options_header(self._disposition)
        if kind.lower() != b"form-data" or b"name" not in options:
            raise ApiError("a part of the form has no name")
        self._name = options[b"name"].decode("utf-8", "replace")[:MAX_FILENAME]
        if self._name != "file":
            if _filename(self._disposition, options) is not None:
                raise ApiError("the file must be in the part 'file'", param="file")
            return
        if self.form.filename is not None:
            raise ApiError("the form has two parts 'file'; send one", param="file")
        filename = _filename(self._disposition, options)
        if not filename:
            raise ApiError(NO_FILENAME, param="file")
        self.form.filename = filename[:MAX_FILENAME]

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name == "file":
            self._file_bytes += end - start
            if self._file_bytes > self._max_bytes:
                raise ApiError(f"the file is larger than {self._max_bytes} bytes, the maximum that fits", 413)
            self.content += data[start:end]
            return
        if len(self._value) + end - start > MAX_FIELD_BYTES:
            raise ApiError(f"a field of the form is longer than {MAX_FIELD_BYTES} bytes", 413)
        self._value += data[start:end]

    def _end(self) -> None:
        if self._name != "file":
            self.form.fields[self._name] = self._value.decode("utf-8", "replace")

    def _finish(self) -> None:
        self.ended = True
