"""The format of a block in a segment file: a header with checksums, then the content."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from hashlib import blake2b

from sglang_plug import KVBlock

MAGIC, VERSION = b"SPKV", 1
FIELDS = struct.Struct("<4sHHI32s16s")
CRC = struct.Struct("<I")
HEADER_BYTES = FIELDS.size + CRC.size
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class RecordHeader:
    """The header of a block: 64 bytes.

    ::

        magic 4 | version 2 | reserved 2 | length 4 | key 32 | digest of key and content 16 | CRC-32 of these 60 bytes 4
    """

    key: bytes
    length: int
    """Bytes of the content."""
    digest: bytes

    @classmethod
    def of(cls, key: bytes, data: memoryview) -> RecordHeader:
        """Make the header of a block. Raises ``ValueError`` for a key of another length."""
        if len(key) != KVBlock.KEY_BYTES:
            raise ValueError(f"a key has {KVBlock.KEY_BYTES} bytes, not {len(key)}")
        return cls(key, data.nbytes, content_digest(key, data))

    @classmethod
    def parse(cls, encoded: bytes | memoryview) -> RecordHeader | None:
        """Read a header; ``None`` if the bytes are none of this version."""
        if len(encoded) < HEADER_BYTES:
            return None
        fields = bytes(encoded[: FIELDS.size])
        magic, version, _, length, key, digest = FIELDS.unpack(fields)
        (crc,) = CRC.unpack(encoded[FIELDS.size : HEADER_BYTES])
        if magic != MAGIC or version != VERSION or crc != zlib.crc32(fields):
            return None
        return cls(key, length, digest)

    def encode(self) -> bytes:
        """Return the bytes of the header."""
        fields = FIELDS.pack(MAGIC, VERSION, 0, self.length, self.key, self.digest)
        return fields + CRC.pack(zlib.crc32(fields))

    def matches(self, data: memoryview) -> bool:
        """Report whether ``data`` is the content that the header was made for."""
        return data.nbytes == self.length and content_digest(self.key, data) == self.digest


def content_digest(key: bytes, data: memoryview) -> bytes:
    """Return a digest of a key and its content."""
    return blake2b(data, digest_size=DIGEST_BYTES, key=key).digest()
