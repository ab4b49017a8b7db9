"""The store ``sqlite``: the database, used from one thread, and the folder with the files."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from sglang_plug import (
    BatchRecord,
    BatchStatus,
    ConfigError,
    ContentWriter,
    FileRecord,
    LineResult,
    Page,
    StorageBroken,
    StorageUnavailable,
    Store,
    StoreContext,
)

from .contents import FileContent, read_file
from .database import Database
from .folder import folder_of, make_private
from .integrity import DatabaseFiles, damage_reported, is_full_disk
from .runner_lock import RunnerLock

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

DATABASE = "batches.sqlite3"
FILES = "files"
ORPHAN_AGE = 3600.0
"""Age in seconds from which an unregistered file is one that a killed process left behind."""
REMEDY = (
    "Copy the folder {folder}, then stop the server with SIGTERM, so that SQLite can still write what it holds; "
    "restore the database from a backup, or move the whole folder away; start again"
)


class SQLiteStore(Store):
    """The storage folder. Nothing is created on disk before the first call.

    Several processes may share a folder; ``RunnerLock`` decides which one runs a model's batches.

    Args:
        context: has its folder and its limits. If callers see only what they own, a warning reports entries without an
            owner.
    """

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self._thread: ThreadPoolExecutor | None = None
        self._database: Database | None = None
        self._files: DatabaseFiles | None = None
        self._locks: dict[str, RunnerLock] = {}
        self._damage = ""

    @cached_property
    def folder(self) -> Path:
        """The storage folder. Raises ``ConfigError`` if there is no such location."""
        return folder_of(self._context.folder)

    @property
    def location(self) -> str:
        """The storage folder."""
        return str(self.folder)

    @property
    def exists(self) -> bool:
        """True if the database exists, so that something may be stored here."""
        return self._database is not None or (self.folder / DATABASE).exists()

    @property
    def is_open(self) -> bool:
        """True if the database is open."""
        return self._database is not None

    def path(self, id: str) -> Path:
        """Return the path of a file's content. ``id`` must come from the table, never from outside."""
        return self.folder / FILES / id

    async def call(self, work: Callable[[Database], Result]) -> Result:
        """Run ``work`` in the database's thread, one at a time.

        Raises what ``work`` raises, ``StorageBroken`` if the database is gone or damaged, and ``StorageUnavailable`` if
        it does not work. When a call returns, its changes are in the files at the folder's paths.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "batch-storage")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    async def close(self) -> None:
        """Finish running calls, close the database and free the locks."""
        for lock in self._locks.values():
            lock.release()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown()
            self._thread = None

    async def check_room(self) -> None:
        """Raise ``StorageFull`` unless another file fits."""
        await self.call(lambda database: database.check_room())

    async def add_file(self, file: FileRecord) -> None:
        """Register a file whose content is on disk."""
        await self.call(lambda database: database.add_file(file))

    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        """Return a file's record."""
        return await self.call(lambda database: database.file(id, owner))

    async def files(
        self, *, limit: int, after: str | None, ascending: bool, purpose: str | None = None, owner: str | None = None
    ) -> Page[FileRecord]:
        """Return a page of files."""
        return await self.call(
            lambda database: database.files(limit=limit, after=after, ascending=ascending, purpose=purpose, owner=owner)
        )

    async def remove_file(self, id: str, owner: str | None = None) -> None:
        """Delete a file's record, then its content; on a full disk the content first, as the record takes room."""

        def remove_content() -> None:
            self.path(id).unlink(missing_ok=True)

        def remove(database: Database) -> None:
            try:
                database.remove_file(id, owner)
            except sqlite3.Error as error:
                if not is_full_disk(error):
                    raise
                database.remove_file(id, owner, remove_content)
            remove_content()

        await self.call(remove)

    async def create_content(self, id: str) -> ContentWriter:
        """Create the file of a content."""
        await self.call(lambda database: None)  # makes the folder
        return await FileContent.create(self.path(id))

    def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file."""
        return read_file(self.path(id))

    def content_path(self, id: str) -> Path:
        """Return the path of a file's content."""
        return self.path(id)

    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch."""
        await self.call(lambda database: database.add_batch(batch))

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch."""
        return await self.call(lambda database: database.batch(id, owner))

    async def batches(
        self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None
    ) -> Page[BatchRecord]:
        """Return a page of batches."""
        return await self.call(
            lambda database: database.batches(limit=limit, after=after, ascending=ascending, owner=owner)
        )

    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        """Return open batches of ``model``, and abandoned ones of other models."""
        return await self.call(lambda database: database.open_batches(model, abandoned_before))

    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if that is allowed."""
        return await self.call(lambda database: database.move(id, to, now, total=total, errors=errors))

    async def may_run_batches(self, model: str) -> bool:
        """Report whether this process holds the lock of the model now; one that gets it has all claims to itself."""

        def acquire(database: Database) -> bool:
            lock = self._locks.setdefault(model, RunnerLock(self.folder, model))
            was_held = lock.is_held
            is_held = lock.acquire()
            if is_held and not was_held:
                database.release_all(model)
            return is_held

        return await self.call(acquire)

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        """Claim lines of a batch."""
        return await self.call(lambda database: database.claim(id, lines, worker, seconds))

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let the claims of ``worker`` last longer."""
        await self.call(lambda database: database.renew(id, worker, seconds))

    async def release(self, id: str, worker: str) -> None:
        """End the claims of ``worker``."""
        await self.call(lambda database: database.release(id, worker))

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        """Store results and count them, each line once."""
        await self.call(lambda database: database.add_results(id, results, worker))

    async def done_lines(self, id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""
        return await self.call(lambda database: database.done_lines(id))

    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return some results, ordered by line."""
        return await self.call(lambda database: database.results(id, succeeded, after=after, limit=limit))

    async def finish(
        self,
        id: str,
        to: BatchStatus,
        now: int,
        *,
        output: FileRecord | None,
        error: FileRecord | None,
        errors: Sequence[Any] = (),
        worker: str = "",
    ) -> BatchRecord | None:
        """End a batch in one step."""
        return await self.call(
            lambda database: database.finish(id, to, now, output=output, error=error, errors=errors, worker=worker)
        )

    def _work(self, work: Callable[[Database], Result]) -> Result:
        try:
            return self._checked(work)
        except (OSError, sqlite3.Error) as error:
            raise StorageUnavailable(str(error), is_disk_full=is_full_disk(error)) from error

    def _checked(self, work: Callable[[Database], Result]) -> Result:
        """Run ``work``, checking the database's files before and after."""
        remedy = REMEDY.format(folder=self.folder)
        if self._damage:
            raise StorageBroken(self._damage, remedy)
        try:
            if self._database is None:
                self._database = self._open()
                self._files = DatabaseFiles(self.folder / DATABASE)
            database, files = self._database, self._files
            assert files is not None
            files.check_present()
            try:
                with damage_reported(DATABASE):
                    files.check_content()
                    answer = work(database)
            except StorageBroken as error:
                self._damage = str(error)  # for good: the connection's cache no longer matches the file
                raise
            files.check_present()
        except StorageBroken as error:
            raise StorageBroken(str(error), remedy) from error
        return answer

    def _open(self) -> Database:
        try:
            for folder in (self.folder, self.folder / FILES):
                make_private(folder)
        except ConfigError as error:
            raise PermissionError(str(error)) from error  # the path is in the log only, not in the response
        with damage_reported(DATABASE):
            database = Database(self.folder / DATABASE, self._context)
            self._remove_orphans(database.file_ids(), database.created_at())
        if self._context.scoped and (count := database.count_ownerless()):
            logger.warning(
                "%d files and batches were stored without an API key or by an earlier version: only the admin key, "
                "--shared-storage and a server without keys reach them",
                count,
            )
        return database

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
        if self._database is not None:
            self._database.close()
            self._database = self._files = None
