"""The messages between two stores: frames of ZeroMQ, the first of which is the kind.

::

    sender                                receiver
    LACKS, number, keys           ->
                                  <-      number, one byte for each key: 1 if the receiver lacks the block
    BLOCK, key, content           ->      for each of these
    PART, key, range, content     ->      a part of one; range: index of its first byte, and bytes of the whole block
    COMPLETE, id of a transfer    ->

A message arrives as a whole or not at all, in the order in which it was sent, and only from those with the secret.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sglang_plug import KVBlock

LACKS, BLOCK, PART, COMPLETE = b"L", b"B", b"P", b"C"
PART_RANGE = struct.Struct("!QQ")
SCHEME = "tcp://"


def joined(keys: Sequence[bytes]) -> bytes:
    """Return keys as one frame."""
    return b"".join(keys)


def separated(frame: bytes) -> list[bytes]:
    """Return the keys of a frame. Raises ``ValueError`` if these are not whole keys."""
    if len(frame) % KVBlock.KEY_BYTES:
        raise ValueError(f"{len(frame)} bytes are not keys of {KVBlock.KEY_BYTES} bytes")
    return [frame[start : start + KVBlock.KEY_BYTES] for start in range(0, len(frame), KVBlock.KEY_BYTES)]


def address_of(host: str, port: int | str) -> str:
    """Return the address of a receiver."""
    return f"{SCHEME}[{host}]:{port}" if ":" in host else f"{SCHEME}{host}:{port}"
