"""Segment files: blocks one after the other, written by one process and read by any."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sglang_plug import KVBlock, KVStoreError

from .record import HEADER_BYTES, MAGIC, RecordHeader

SUFFIX = ".kv"
SEARCHED = 1 << 20
"""Bytes that are read at once to find the next block after a damaged one."""
USE_PERIOD = 10.0
"""Seconds between two updates of a file's time of use."""


@dataclass(frozen=True, slots=True)
class BlockLocation:
    """The location of a block in a segment."""

    segment: Segment
    offset: int
    """Position of the block's header in the file."""
    length: int
    """Bytes of the content."""


class Segment:
    """An open segment file. It stays readable after it is removed, and is closed with the last reference.

    Args:
        path: the file. Raises ``OSError`` if it cannot be opened.
        created: the file is made, and must not exist; else it is only read.
    """

    def __init__(self, path: Path, *, created: bool = False) -> None:
        self.path, self._fd = path, -1
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL if created else os.O_RDONLY
        self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self.scanned = 0
        """Bytes up to which blocks are known."""
        self.used = os.fstat(self._fd).st_mtime
        """``time.time()`` of the last use of a block."""
        self._noted = self.used

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    @property
    def size(self) -> int:
        """Return the size of the file."""
        return os.fstat(self._fd).st_size

    def note_use(self) -> None:
        """Note that a block was used; other processes read the time from the file."""
        self.used = time.time()
        if self.used - self._noted >= USE_PERIOD:
            self._noted = self.used
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def is_locked(self) -> bool:
        """Report whether a process, perhaps this one, still writes to the file."""
        try:
            lock = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def scan(self) -> Iterator[tuple[RecordHeader, int]]:
        """Yield header and offset of each block that was written since the last scan; what is no block is skipped.

        An incomplete block at the end is tried again by the next scan: its writer may be at it.
        """
        size = self.size
        while self.scanned + HEADER_BYTES <= size:
            offset = self.scanned
            header = RecordHeader.parse(os.pread(self._fd, HEADER_BYTES, offset))
            if header is None:
                following = self._next_header(offset + 1, size)
                if following is None:
                    return
                self.scanned = following
                continue
            end = offset + HEADER_BYTES + header.length
            if end > size:
                return
            self.scanned = end
            yield header, offset

    def _next_header(self, start: int, size: int) -> int | None:
        """Return the offset of the first header from ``start`` on; ``None`` if there is none."""
        while start + HEADER_BYTES <= size:  # not by mmap: the file's owner may truncate it
            content = os.pread(self._fd, SEARCHED, start)
            at = content.find(MAGIC)
            while at >= 0:
                if RecordHeader.parse(os.pread(self._fd, HEADER_BYTES, start + at)) is not None:
                    return start + at
                at = content.find(MAGIC, at + 1)
            start += max(1, len(content) - len(MAGIC) + 1)
        return None

    def read(self, key: bytes, offset: int, length: int) -> memoryview:
        """Return the content of the block with ``key``. Raises ``KVStoreError`` if it is not what was stored."""
        try:
            record = self._read_record(HEADER_BYTES + length, offset)
        except OSError as error:
            raise KVStoreError(f"{self.path}: {error}") from error
        header, data = RecordHeader.parse(record), record[HEADER_BYTES:]
        if header is None or header.key != key or not header.matches(data):
            raise KVStoreError(f"{self.path}: the block at byte {offset} is damaged")
        return data

    def _read_record(self, size: int, offset: int) -> memoryview:
        """Return what the file has of ``size`` bytes, in memory that is writable: tensors refer to no other."""
        record = np.empty(size, np.uint8).data
        read = 0
        while read < size and (count := os.preadv(self._fd, [record[read:]], offset + read)):
            read += count
        return record[:read]


class SegmentWriter:
    """Appends blocks to a new segment file, which stays locked until the writer is closed.

    Args:
        path: the file, which must not exist. Raises ``OSError`` if it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.segment = Segment(path, created=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with contextlib.suppress(OSError):  # a file system without locks: others may remove the file while it grows
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.bytes = 0

    def append(self, block: KVBlock) -> BlockLocation:
        """Write a block. Raises ``OSError``, for instance if the disk is full; the file is then as before."""
        header = RecordHeader.of(block.key, block.data)
        parts = [memoryview(header.encode()), block.data.cast("B")]
        offset = self.bytes
        try:
            self._write(parts, offset)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, offset)
            raise
        self.bytes = self.segment.scanned = offset + HEADER_BYTES + header.length
        return BlockLocation(self.segment, offset, header.length)

    def _write(self, parts: list[memoryview], offset: int) -> None:
        """Write all of ``parts``; the system may write less at once."""
        while parts:
            written = os.pwritev(self._fd, parts, offset)
            offset += written
            while parts and written >= parts[0].nbytes:
                written -= parts.pop(0).nbytes
            if parts:
                parts[0] = parts[0][written:]

    def close(self) -> None:
        """Unlock the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
