"""Storage of files and batches: the table, used from one thread, and the folder with the files."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sglang_plug import ConfigError
from sglang_plug_api.http.errors import SHOWN, ApiError
from sglang_plug_api.options.config import StorageConfig

from .folder import folder_of, make_private
from .integrity import DatabaseFiles, damage_reported, is_full_disk
from .store import FileInUse, StorageBroken, StorageFull, Store, UnknownId

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

STORAGE_ERRORS = (StorageBroken, OSError, sqlite3.Error)
"""Errors that mean that the storage does not work at all."""
LOG_HAS_DETAILS = "the server's log has the details"
DATABASE = "batches.sqlite3"
FILES = "files"
ORPHAN_AGE = 3600.0
"""Age in seconds from which an unregistered file is one that a killed process left behind."""


REMEDY = (
    "files and batches answer 503 from now on. Copy the folder %s, then stop the server with SIGTERM, so that SQLite "
    "can still write what it holds; restore the database from a backup, or move the whole folder away; start again"
)


class Storage:
    """The storage folder. Nothing is created on disk before the first call.

    A process has one of these (``TextEngine.storage``), which alone opens the database. Several processes may share a
    folder; ``RunnerLock`` decides which one runs a model's batches.

    Args:
        config: its location and limits.
        scoped: True if callers see only what they own; then a warning reports entries without an owner.
    """

    def __init__(self, config: StorageConfig, *, scoped: bool = False) -> None:
        self.config, self._scoped = config, scoped
        self._thread: ThreadPoolExecutor | None = None
        self._store: Store | None = None
        self._files: DatabaseFiles | None = None
        self._damage = ""
        self.problem = ""
        """Error of the last call; empty if it succeeded."""

    @cached_property
    def folder(self) -> Path:
        """The storage folder. Raises ``ConfigError`` if there is no such location."""
        return folder_of(self.config)

    @property
    def exists(self) -> bool:
        """True if the database exists, so that something may be stored here."""
        return self._store is not None or (self.folder / DATABASE).exists()

    def status(self) -> dict[str, Any]:
        """Return whether the database is open, and its problem, for ``/server_info``."""
        return {"open": self._store is not None, "problem": self.problem or None}

    def path(self, id: str) -> Path:
        """Return the path of a file's content. ``id`` must come from the table, never from outside."""
        return self.folder / FILES / id

    async def call(self, work: Callable[[Store], Result]) -> Result:
        """Run ``work`` in the store's thread, one at a time.

        Raises what ``work`` raises, ``StorageBroken`` if the database is gone or damaged, and ``OSError`` or
        ``sqlite3.Error`` if the storage does not work. When a call returns, its changes are in the files
        at the folder's paths.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "batch-storage")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    async def client_call(self, work: Callable[[Store], Result]) -> Result:
        """Run ``work`` as ``call`` does, for a client. Raises ``ApiError`` if the storage refuses or fails."""
        try:
            return await self.call(work)
        except (UnknownId, FileInUse, StorageFull, *STORAGE_ERRORS) as error:
            raise storage_refusal(error) from error

    async def close(self) -> None:
        """Finish running calls and close the database."""
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown()
            self._thread = None

    def _work(self, work: Callable[[Store], Result]) -> Result:
        try:
            answer = self._checked(work)
        except STORAGE_ERRORS as error:
            self.report(error)
            raise
        if self.problem:
            logger.warning("the file storage works again")
            self.problem = ""
        return answer

    def _checked(self, work: Callable[[Store], Result]) -> Result:
        """Run ``work``, checking the database's files before and after."""
        if self._damage:
            raise StorageBroken(self._damage)
        if self._store is None:
            self._store = self._open()
            self._files = DatabaseFiles(self.folder / DATABASE)
        store, files = self._store, self._files
        assert files is not None
        files.check_present()
        try:
            with damage_reported(DATABASE):
                files.check_content()
                answer = work(store)
        except StorageBroken as error:
            self._damage = str(error)  # for good: the connection's cache no longer matches the file
            raise
        files.check_present()
        return answer

    def report(self, error: Exception) -> None:
        """Log a failure of the storage, unless it is the same as the last one."""
        text = str(error)
        if text == self.problem:
            return
        self.problem = text
        if isinstance(error, StorageBroken):
            logger.critical("the file storage is broken: %s; " + REMEDY, text, self.folder)
        elif is_full_disk(error):
            logger.error("the disk of the file storage %s is full: %s", self.folder, text)
        else:
            logger.error("the file storage %s failed: %s", self.folder, text)

    def _open(self) -> Store:
        try:
            for folder in (self.folder, self.folder / FILES):
                make_private(folder)
        except ConfigError as error:
            raise PermissionError(str(error)) from error  # the path is in the log only, not in the response
        limits = {"max_files": self.config.max_files, "max_bytes": self.config.max_storage_bytes}
        with damage_reported(DATABASE):
            store = Store(self.folder / DATABASE, **limits)
            self._remove_orphans(store.file_ids(), store.created_at())
        if self._scoped and (count := store.count_ownerless()):
            logger.warning(
                "%d files and batches were stored without an API key or by an earlier version: only the admin key, "
                "--shared-storage and a server without keys reach them",
                count,
            )
        return store

    def _remove_orphans(self, known: set[str], database_made: int) -> None:
        """Remove files that killed uploads left behind.

        Files older than the database belong to a deleted one: a backup of it may refer to them.
        """
        too_old, kept = time.time() - ORPHAN_AGE, 0
        for path in (self.folder / FILES).iterdir():
            written = path.stat().st_mtime
            if path.name in known or written >= too_old:
                continue
            if written < database_made:
                kept += 1
            else:
                path.unlink(missing_ok=True)
        if kept:
            logger.warning(
                "%s has %d files that are older than %s and not in it; restore the database they belong to, or delete "
                "them",
                self.folder / FILES,
                kept,
                DATABASE,
            )

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._files = None


class RunnerLock:
    """Lock of the one process that runs the batches of a model in a folder; the system frees it when that dies."""

    def __init__(self, folder: Path, model: str) -> None:
        self._path = folder / f"runner-{hashlib.sha256(model.encode()).hexdigest()[:32]}.lock"
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Return True if this process holds the lock now; False also if the folder was removed."""
        if self._descriptor is not None:
            if self._is_at_path(self._descriptor):
                return True
            self.release()  # the lock file was deleted, so another server can lock a new one
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return self._is_at_path(descriptor)

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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


def storage_refusal(error: Exception) -> ApiError:
    """Return the error that a client gets when the storage refuses or fails."""
    match error:
        case UnknownId():
            return ApiError(f"there is no {str(error)[:SHOWN]!r} here", 404)
        case FileInUse():
            return ApiError(f"the file is in use by {error}; cancel that batch or wait until it is over", code="in_use")
        case StorageFull():
            return ApiError(str(error), 413, code="storage_full")
        case StorageBroken():
            return ApiError(f"the server's file storage is broken: {error}; {LOG_HAS_DETAILS}", 503)
        case OSError() | sqlite3.Error() if is_full_disk(error):
            return ApiError("the disk of the server's file storage is full", 503, code="disk_full")
        case OSError() | sqlite3.Error():
            return ApiError(f"the server's file storage does not work; {LOG_HAS_DETAILS}", 503)
        case _:
            raise error
