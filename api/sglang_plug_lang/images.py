"""Images in the form that requests carry."""

from __future__ import annotations

import base64
import binascii
import struct
from pathlib import Path

import httpx

ADDRESSES = ("http://", "https://")
FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
"""JPEG markers of the segments that have the size."""


def image_data(source: str | bytes | Path) -> str:
    """Return the image for a request: a URL as it is, others as base64. Raises ``OSError`` for a missing file."""
    if isinstance(source, str) and source.startswith((*ADDRESSES, "data:")):
        return source
    return base64.b64encode(image_bytes(source)).decode("ascii")


def image_bytes(source: str | bytes | Path) -> bytes:
    """Return the bytes of an image. Raises ``OSError`` if it cannot be read."""
    if isinstance(source, bytes):
        return source
    text = str(source)
    if text.startswith(ADDRESSES):
        return content_of_url(text)
    if text.startswith("data:"):
        try:
            return base64.b64decode(text.partition(",")[2], validate=True)
        except binascii.Error as error:
            raise OSError(f"the data address is not base64: {error}") from error
    return Path(source).read_bytes()


def content_of_url(url: str) -> bytes:
    """Return the content of a URL. Raises ``OSError`` if it cannot be loaded."""
    try:
        return httpx.get(url, follow_redirects=True, timeout=30.0).raise_for_status().content
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise OSError(f"nothing could be loaded from {url}: {error}") from error


def image_size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF or JPEG; ``None`` for anything else."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            width, height = struct.unpack_from(">II", data, 16)
            return width, height
        if data.startswith((b"GIF87a", b"GIF89a")):
            width, height = struct.unpack_from("<HH", data, 6)
            return width, height
        if data.startswith(b"\xff\xd8"):
            return _jpeg_size(data)
    except struct.error:
        pass
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    offset = 2
    while data[offset : offset + 1] == b"\xff":
        marker, length = struct.unpack_from(">xBH", data, offset)
        if marker in FRAMES:
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return width, height
        offset += 2 + length
    return None
