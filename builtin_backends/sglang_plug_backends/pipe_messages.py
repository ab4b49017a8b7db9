"""Messages over the pipes of a child process: a length of eight bytes, then the content."""

from __future__ import annotations

import struct
from typing import BinaryIO

LENGTH = struct.Struct("<Q")


def read_message(pipe: BinaryIO) -> bytes | None:
    """Return the next message; ``None`` if the other end is gone."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size: int = LENGTH.unpack(head)[0]
    body = pipe.read(size)
    return body if len(body) == size else None


def write_message(pipe: BinaryIO, *parts: bytes) -> None:
    """Send one message, the concatenation of ``parts``."""
    pipe.write(b"".join((LENGTH.pack(sum(map(len, parts))), *parts)))
    pipe.flush()
