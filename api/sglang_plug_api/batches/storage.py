"""The folder behind files and batches: the table, kept in a thread of its own, and the files beside it."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from sglang_plug import ConfigError
from sglang_plug_api.config import StorageConfig
from sglang_plug_api.errors import SHOWN, ApiError

from .store import FileInUse, StorageFull, Store, UnknownId

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

DATABASE = "batches.sqlite3"
FILES = "files"
DEFAULT_FOLDER = "sglang_plug_storage"
ORPHAN_AGE = 3600.0
"""Seconds after which a file that nobody registered is what a killed process left behind."""


class Storage:
    """The storage folder. Nothing is made on disk before the first call.

    Several processes may share a folder; who runs a model's batches is settled with ``RunnerLock``.
    """

    def __init__(self, config: StorageConfig) -> None:
        self.config = config
        self.folder = folder_of(config)
        self._thread: ThreadPoolExecutor | None = None
        self._store: Store | None = None

    @property
    def exists(self) -> bool:
        """Whether anybody ever stored something here."""
        return (self.folder / DATABASE).exists()

    def path(self, id: str) -> Path:
        """Where the content of a file is. ``id`` must come from the table, never from outside."""
        return self.folder / FILES / id

    async def call(self, work: Callable[[Store], Answer]) -> Answer:
        """Run ``work`` in the store's thread, one at a time.

        Raises what ``work`` raises, and ``OSError`` or ``sqlite3.Error`` if the storage does not work.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "batch-storage")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    async def ask(self, work: Callable[[Store], Answer]) -> Answer:
        """``call`` for a client's sake. Raises ``ApiError`` if the storage refuses or fails."""
        try:
            return await self.call(work)
        except (UnknownId, FileInUse, StorageFull, OSError, sqlite3.Error) as error:
            raise refusal(error) from error

    async def close(self) -> None:
        """Finish what runs and close the database."""
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown()
            self._thread = None

    @asynccontextmanager
    async def lifespan(self, _app: Any = None) -> AsyncIterator[None]:
        """Closes the storage when the application ends."""
        try:
            yield
        finally:
            await self.close()

    def _work(self, work: Callable[[Store], Answer]) -> Answer:
        if self._store is None:
            self._store = self._open()
        return work(self._store)

    def _open(self) -> Store:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / FILES).mkdir(mode=0o700, exist_ok=True)
        config, database = self.config, self.folder / DATABASE
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        store = Store(database, max_files=config.max_files, max_bytes=config.max_storage_bytes)
        self._remove_orphans(store.file_ids())
        return store

    def _remove_orphans(self, known: set[str]) -> None:
        too_old = time.time() - ORPHAN_AGE
        for path in (self.folder / FILES).iterdir():
            if path.name not in known and path.stat().st_mtime < too_old:
                path.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None


class RunnerLock:
    """Held by the one process that runs the batches of a model in a folder; the system frees it when it dies."""

    def __init__(self, folder: Path, model: str) -> None:
        self._path = folder / f"runner-{hashlib.sha256(model.encode()).hexdigest()[:32]}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """True if this process holds it now."""
        if self._descriptor is not None:
            return True
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Give it back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def folder_of(config: StorageConfig) -> Path:
    """The folder that was named, or one in the user's state directory. Raises ``ConfigError`` if there is none."""
    if config.file_storage_path is not None:
        return Path(config.file_storage_path).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(state):
        return Path(state) / DEFAULT_FOLDER
    try:
        return Path.home() / ".local" / "state" / DEFAULT_FOLDER
    except RuntimeError as error:
        raise ConfigError("this user has no home for uploaded files; set --file-storage-path") from error


class DurableFile:
    """A file being written: on disk when ``close`` returns, gone when ``discard`` does."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        self.size = 0

    def write(self, data: bytes | bytearray) -> None:
        """Append."""
        self._file.write(data)
        self.size += len(data)

    def close(self) -> None:
        """Flush to the disk, the folder's entry too."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Remove it."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def refusal(error: Exception) -> ApiError:
    """What a client is told when the storage refuses or fails."""
    match error:
        case UnknownId():
            return ApiError(f"there is no {str(error)[:SHOWN]!r} here", 404)
        case FileInUse():
            return ApiError(f"the file is in use by {error}; cancel that batch or wait until it is over", code="in_use")
        case StorageFull():
            return ApiError(str(error), 413, code="storage_full")
        case OSError() | sqlite3.Error():
            logger.error("the file storage failed: %s", error)
            return ApiError("the server's file storage does not work; the server's log has the details", 503)
        case _:
            raise error
