"""The disk store: an index in memory over the segment files of a directory."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from sglang_plug import KVBlock, KVStore, KVStoreError, KVStoreStats
from sglang_plug_backends.background_thread import background_thread
from sglang_plug_backends.kv_stores.settings import DiskSettings, parse_bytes

from .directory import StoreDirectory, remove_until
from .record import HEADER_BYTES
from .segment import BlockLocation, Segment, SegmentWriter

logger = logging.getLogger(__name__)

SEGMENTS = 16
"""The budget is divided into at least this many files, so that making room drops a small part of the blocks."""
MAX_SEGMENT_BYTES = 256 << 20
REFRESH_SECONDS = 2.0
"""Seconds between two looks for blocks that other servers have written."""
BATCH = 1000
"""Maximum number of blocks that the index is locked for: the step loop looks into it."""


class DiskStore(KVStore):
    """Keeps blocks in the files of a directory.

    Each process appends to a file of its own, so a process that is killed leaves at most one incomplete block at the
    end of one file. The index is rebuilt from the headers of all blocks; contents are verified when they are read.

    Args:
        settings: the directory, its budget and the policy. Raises ``ConfigError`` if the directory cannot be used.
    """

    index_in_memory = True
    verifies = True

    def __init__(self, settings: DiskSettings) -> None:
        self._directory = StoreDirectory.create(settings.path)
        self._capacity, self._by_use = parse_bytes(settings.bytes), settings.eviction == "lru"
        self._segment_bytes = max(1, min(MAX_SEGMENT_BYTES, self._capacity // SEGMENTS))
        # The step loop takes the lock of the index: nobody waits for a file while holding it. What else is changed is
        # protected by the lock of writers.
        self._index_lock, self._write_lock = threading.Lock(), threading.Lock()
        self._index: dict[bytes, BlockLocation] = {}
        self._segments: dict[str, Segment] = {}
        self._keys: dict[str, list[bytes]] = {}  # of the blocks in each file
        self._bytes = 0
        self._writer: SegmentWriter | None = None
        self._generation = self._directory.generation()
        self._refresh()
        self._closed = threading.Event()
        self._refresher = background_thread(self._keep_refreshed, "kv-disk")
        self._refresher.start()

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks are in the index."""
        with self._index_lock:
            return [key in self._index for key in keys]

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        """Read and verify blocks; a damaged one is dropped from the index."""
        if self._directory.generation() != self._generation:
            with self._write_lock:
                self._refresh()
        return [self._load(key, deadline) for key in keys]

    def _load(self, key: bytes, deadline: float) -> memoryview | KVStoreError:
        with self._index_lock:
            location = self._index.get(key)
        if location is None:
            return KVStoreError("the block was dropped")
        if time.monotonic() >= deadline:
            return KVStoreError("the deadline has passed")
        try:
            data = location.segment.read(key, location.offset, location.length)
        except KVStoreError as error:
            self.delete([key])
            return error
        location.segment.note_use()
        return data

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Append blocks that the directory does not have; remove files beyond the budget. Raises ``KVStoreError``."""
        with self._write_lock:
            try:
                for block in blocks:
                    self._append(block)
            except OSError as error:
                self._end_segment()
                raise KVStoreError(f"{self._directory.path}: {error}") from error

    def delete(self, keys: Sequence[bytes]) -> None:
        """Drop blocks from the index. Their bytes stay until the file is removed: a restarted server has them again."""
        with self._index_lock:
            for key in keys:
                self._index.pop(key, None)

    def clear(self) -> None:
        """Begin a new generation of the directory. Raises ``KVStoreError`` if that is not possible."""
        with self._write_lock:
            self._forget_all()
            try:
                self._generation = self._directory.clear()
            except OSError as error:
                raise KVStoreError(f"{self._directory.path} cannot be emptied: {error}") from error

    def stats(self) -> KVStoreStats:
        """Return the contents, those of other servers included."""
        with self._index_lock:
            return KVStoreStats(blocks=len(self._index), bytes=self._bytes, capacity=self._capacity)

    def close(self) -> None:
        """End the thread, and close all files."""
        self._closed.set()
        self._refresher.join()
        with self._write_lock:
            self._forget_all()

    # -- writing; the write lock is held ---------------------------------------------------------------------------

    def _append(self, block: KVBlock) -> None:
        size = HEADER_BYTES + block.data.nbytes
        with self._index_lock:
            if block.key in self._index or size > self._capacity:
                return
        if self._writer is not None and self._writer.bytes and self._writer.bytes + size > self._segment_bytes:
            self._end_segment()
        self._make_room(size)
        if self._writer is None:
            self._begin_segment()
        assert self._writer is not None
        location = self._writer.append(block)
        self._keys[location.segment.path.name].append(block.key)
        with self._index_lock:
            self._index[block.key] = location
            self._bytes += size

    def _begin_segment(self) -> None:
        """Begin a file. The directory may have been removed, or emptied by another process, meanwhile."""
        self._directory.begin()
        self._refresh()
        writer = SegmentWriter(self._directory.new_segment(self._generation))
        self._writer = writer
        self._add_segment(writer.segment)

    def _end_segment(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _make_room(self, size: int) -> None:
        """Remove files until ``size`` more bytes fit the budget. Raises ``OSError``, and ``KVStoreError`` if too few
        can be removed.
        """
        if self._bytes + size <= self._capacity:
            return
        self._refresh()
        segments = sorted(self._segments.values(), key=lambda segment: segment.path.name)  # the oldest first
        if self._by_use:
            segments.sort(key=lambda segment: segment.used)
        self._remove(segments, size)
        if self._bytes + size > self._capacity and self._writer is not None:
            self._end_segment()  # the file itself fills the budget
            self._remove([segment for segment in segments if segment.path.name in self._segments], size)
        if self._bytes + size > self._capacity:
            raise KVStoreError(f"{self._directory.path} is full of the files of other servers")

    def _remove(self, segments: list[Segment], size: int) -> None:
        """Remove files, the first of ``segments`` first, until ``size`` more bytes fit the budget."""
        for segment in remove_until(segments, self._capacity - size, self._bytes):
            self._forget(segment)
        self._count_bytes()

    # -- the index -------------------------------------------------------------------------------------------------

    def _keep_refreshed(self) -> None:
        while not self._closed.wait(REFRESH_SECONDS):
            with self._write_lock:
                self._refresh()

    def _refresh(self) -> None:
        """Add the blocks that other processes have written, and drop those of files that were removed."""
        generation = self._directory.generation()
        if generation != self._generation:
            self._forget_all()
            self._generation = generation
        paths = {path.name: path for path in self._directory.segment_paths(generation)}
        for name in self._segments.keys() - paths.keys():
            self._forget(self._segments[name])
        for name, path in paths.items():
            with contextlib.suppress(OSError):  # removed meanwhile
                segment = self._segments.get(name) or Segment(path)
                if self._writer is None or segment is not self._writer.segment:
                    self._scan(segment)
        self._count_bytes()

    def _add_segment(self, segment: Segment) -> None:
        self._segments[segment.path.name] = segment
        self._keys.setdefault(segment.path.name, [])

    def _scan(self, segment: Segment) -> None:
        """Add the blocks that were appended to a file. The youngest copy of a block counts: it may have been stored
        again because the older one is damaged.
        """
        locations = [(header.key, BlockLocation(segment, offset, header.length)) for header, offset in segment.scan()]
        self._add_segment(segment)
        self._keys[segment.path.name] += [key for key, _ in locations]
        for start in range(0, len(locations), BATCH):
            with self._index_lock:
                self._index.update(locations[start : start + BATCH])

    def _forget(self, segment: Segment) -> None:
        """Drop the blocks of a file that was removed."""
        if self._writer is not None and segment is self._writer.segment:
            self._end_segment()
        self._segments.pop(segment.path.name, None)
        keys = self._keys.pop(segment.path.name, [])
        for start in range(0, len(keys), BATCH):
            with self._index_lock:
                for key in keys[start : start + BATCH]:
                    if (location := self._index.get(key)) is not None and location.segment is segment:
                        del self._index[key]

    def _count_bytes(self) -> None:
        size = sum(segment.size for segment in self._segments.values())
        with self._index_lock:
            self._bytes = size

    def _forget_all(self) -> None:
        self._end_segment()
        self._segments.clear()
        self._keys.clear()
        with self._index_lock:
            index, self._index = self._index, {}
            self._bytes = 0
        del index  # closes the files
