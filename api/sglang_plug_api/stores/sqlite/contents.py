"""Contents of files in a folder: durable when they are committed, and removed if they never were."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from sglang_plug import ContentMissing, ContentWriter, StorageUnavailable

from .integrity import is_full_disk

READ_BYTES = 256 << 10
F = TypeVar("F")


class DurableFile:
    """A file being written: it is on disk when ``close`` returns, and removed when ``discard`` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        self.size = 0

    def write(self, data: bytes | bytearray) -> None:
        """Append ``data``."""
        self._file.write(data)
        self.size += len(data)

    def close(self) -> None:
        """Flush the file and its folder entry to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # a full disk has no room for unwritten data either
            self._file.close()
        self._path.unlink(missing_ok=True)


class FileContent(ContentWriter):
    """Content that is written to a ``DurableFile`` by threads."""

    def __init__(self, file: DurableFile) -> None:
        self._file = file

    @classmethod
    async def create(cls, path: Path) -> FileContent:
        """Create the file. Raises ``StorageUnavailable``."""
        with os_errors():
            return cls(await _opened(lambda: DurableFile(path), DurableFile.discard))

    @property
    def size(self) -> int:  # type: ignore[override]
        """Bytes that were written."""
        return self._file.size

    async def write(self, data: bytes | bytearray) -> None:
        """Append ``data``."""
        with os_errors():
            await asyncio.to_thread(self._file.write, data)

    async def commit(self) -> None:
        """Flush the file to the disk."""
        with os_errors():
            await asyncio.to_thread(self._file.close)

    async def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self._file.discard()


async def read_file(path: Path) -> AsyncGenerator[bytes, None]:
    """Yield the content of a file. Raises ``ContentMissing`` and ``StorageUnavailable``."""
    with os_errors():
        try:
            file = await _opened(lambda: path.open("rb"), lambda opened: opened.close())
        except FileNotFoundError:
            raise ContentMissing(path.name) from None
        with file:
            while data := await asyncio.to_thread(file.read, READ_BYTES):
                yield data


async def _opened(open_file: Callable[[], F], close: Callable[[F], None]) -> F:
    """Open a file in a thread. If the caller is cancelled, ``close`` the file now, or in the thread once it is open."""
    lock = threading.Lock()
    opened: list[F] = []
    is_cancelled = False

    def open_and_keep() -> None:
        file = open_file()
        with lock:
            if not is_cancelled:
                opened.append(file)
                return
        close(file)

    try:
        await asyncio.to_thread(open_and_keep)
    except asyncio.CancelledError:
        with lock:
            is_cancelled = True
        for file in opened:
            close(file)
        raise
    return opened[0]


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turn errors of the operating system into ``StorageUnavailable``."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(str(error), is_disk_full=is_full_disk(error)) from error
