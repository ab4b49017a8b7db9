"""Detection of database files that were deleted, replaced or damaged by a program other than SQLite."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from sglang_plug import StorageBroken

from .schema import VERSION

DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process's transaction."""
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

FileIdentity = tuple[int, int]
"""Device and inode of a file."""


class DatabaseFiles:
    """The files of an open SQLite database, compared with their state when it was opened.

    They are only examined by path. A file descriptor of the database must never be opened here: closing it would drop
    every lock that this process holds on the file, and another process would then delete the write-ahead log.
    """

    def __init__(self, database: Path) -> None:
        self._database = database
        log, index = (database.with_name(database.name + suffix) for suffix in ("-wal", "-shm"))
        self._identities = {path: _identity(path) for path in (database, log, index) if path.exists()}
        self._state = self._content_state()

    def check_present(self) -> None:
        """Raise ``StorageBroken`` unless each path still leads to the file that SQLite has open.

        Without its write-ahead log or index, SQLite commits to a file that can never be opened again.
        """
        for path, identity in self._identities.items():
            try:
                if _identity(path) != identity:
                    raise StorageBroken(f"{path.name} was replaced by another file while the server was running")
            except FileNotFoundError:
                raise StorageBroken(f"{path.name} was deleted while the server was running") from None

    def check_content(self) -> None:
        """Raise ``StorageBroken`` or ``sqlite3.Error`` if the file has changed and is not our database any more.

        The open connection reads pages from its cache, so it may not notice damage to the file for a long time.
        A second connection reads them from the disk; SQLite itself takes care of the locks when that one is closed.
        """
        state = self._content_state()
        if state == self._state:
            return
        uri = f"{self._database.as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=LOCK_TIMEOUT)) as reader:
            (version,) = reader.execute("PRAGMA user_version").fetchone()
            if version < VERSION:
                raise StorageBroken(f"the content of {self._database.name} was deleted while the server was running")
            reader.execute("SELECT (SELECT MAX(number) FROM files), (SELECT MAX(number) FROM batches)").fetchone()
        self._state = state

    def _content_state(self) -> tuple[int, int]:
        """Return size and modification time; SQLite changes the file only when it empties the write-ahead log."""
        state = self._database.stat()
        return state.st_size, state.st_mtime_ns


@contextlib.contextmanager
def damage_reported(name: str) -> Iterator[None]:
    """Turn errors about the content of the file ``name`` into ``StorageBroken``."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # Python's own errors have none
        if code not in DAMAGE_CODES and "no such table" not in str(error):
            raise
        raise StorageBroken(f"{name} is damaged ({error})") from error


def is_full_disk(error: Exception) -> bool:
    """Return True if the disk is full, or the user's quota on it."""
    if isinstance(error, OSError):
        return error.errno in FULL_DISK_ERRORS
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_FULL


def _identity(path: Path) -> FileIdentity:
    state = os.stat(path)
    return state.st_dev, state.st_ino
