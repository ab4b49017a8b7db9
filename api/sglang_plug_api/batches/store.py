"""Table of files, batches and results: one SQLite database in which every change is one transaction.

A ``Store`` belongs to the thread that created it; ``storage.Storage`` has a thread for it. Several processes may
use one database.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .records import OPEN_STATUSES, TRANSITIONS, BatchRecord, FileRecord, LineResult, Page, Status, TokenCounts

VERSION = 3
LOCK_TIMEOUT = 30.0
"""Seconds to wait for another process's transaction."""
MAX_OPEN_BATCHES = 1000
MAX_KEPT_BATCHES = 10_000
"""Ended batches that stay listed; the oldest ones are deleted, their files stay."""

TOKENS = tuple(field.name for field in fields(TokenCounts))
"""Columns of a batch's usage."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL, owner TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, status TEXT NOT NULL, metadata TEXT, errors TEXT NOT NULL DEFAULT '[]',
    output_file_id TEXT, error_file_id TEXT, total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, {"".join(f"{name} INTEGER NOT NULL DEFAULT 0, " for name in TOKENS)}
    result_bytes INTEGER NOT NULL DEFAULT 0, in_progress_at INTEGER,
    finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER,
    cancelled_at INTEGER, owner TEXT NOT NULL DEFAULT '');
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, succeeded INTEGER NOT NULL, payload BLOB NOT NULL,
    UNIQUE (batch, line));
CREATE TABLE IF NOT EXISTS database (created_at INTEGER NOT NULL);
"""
UPGRADES = {
    1: tuple(f"ALTER TABLE batches ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0" for name in TOKENS),
    2: tuple(f"ALTER TABLE {table} ADD COLUMN owner TEXT NOT NULL DEFAULT ''" for table in ("files", "batches")),
}
"""Maps the version of a database to the statements that upgrade it to the next version."""
BATCH_FIELDS = tuple(field.name for field in fields(BatchRecord) if field.name != "usage")
BATCH_COLUMNS = ", ".join((*BATCH_FIELDS, *TOKENS))
FILE_FIELDS = tuple(field.name for field in fields(FileRecord))
FILE_COLUMNS = ", ".join(FILE_FIELDS)


class StorageFull(Exception):
    """A limit of the storage would be exceeded."""


class FileInUse(Exception):
    """The file is still read by an open batch."""


class StorageBroken(Exception):
    """The database cannot be used: its files were deleted, replaced or damaged. The text says which and how."""


class UnknownId(Exception):
    """No file or batch has this id."""


class Store:
    """An open database.

    Methods with an ``owner`` ignore entries of other owners; ``None`` stands for all owners.

    Args:
        path: the database file; created if it is missing.
        max_files: most files.
        max_bytes: most bytes of files and unfinished results together.
    """

    def __init__(self, path: Path, *, max_files: int, max_bytes: int) -> None:
        self._max_files, self._max_bytes = max_files, max_bytes
        self._database = sqlite3.connect(path, timeout=LOCK_TIMEOUT, isolation_level=None)
        try:
            self._prepare(path)
        except BaseException:
            self._database.close()
            raise

    def _prepare(self, path: Path) -> None:
        self._database.row_factory = sqlite3.Row
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)  # by path: closing a descriptor of our own would drop the locks of this process
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # commits survive a power cut
        with self._transaction():
            (version,) = self._row("PRAGMA user_version")
            if version not in (0, *UPGRADES, VERSION):
                raise StorageBroken(f"{path.name} was made by another version ({version}, this one is {VERSION})")
            upgrades = [statement for older in range(version or VERSION, VERSION) for statement in UPGRADES[older]]
            for statement in (*SCHEMA.split(";"), *upgrades):
                self._database.execute(statement)
            if self._row("SELECT * FROM database") is None:
                self._database.execute("INSERT INTO database VALUES (?)", (0 if version else int(time.time()),))
            self._database.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def created_at(self) -> int:
        """Return the creation time of the database in seconds since the epoch; 0 for one of an earlier version."""
        (seconds,) = self._row("SELECT created_at FROM database")
        return int(seconds)

    def count_ownerless(self) -> int:
        """Count the files and batches that were created without an API key, or by an earlier version."""
        (count,) = self._row(
            "SELECT (SELECT COUNT(*) FROM files WHERE owner = '') + (SELECT COUNT(*) FROM batches WHERE owner = '')"
        )
        return int(count)

    def used_bytes(self) -> int:
        """Return the bytes of all files and of the results that are in no file yet."""
        (total,) = self._row(
            "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(result_bytes), 0) FROM batches)"
        )
        return int(total)

    def check_room(self, more: int = 0) -> None:
        """Raise ``StorageFull`` unless another file of ``more`` bytes fits."""
        (count,) = self._row("SELECT COUNT(*) FROM files")
        if count >= self._max_files:
            raise StorageFull(f"the storage holds {count} files, the most that --max-files allows; delete some")
        self._check_bytes(more)

    def add_file(self, file: FileRecord) -> None:
        """Register a file whose content is on disk. Raises ``StorageFull``."""
        with self._transaction():
            self.check_room(file.bytes)
            self._insert_file(file)

    def file(self, id: str, owner: str | None = None) -> FileRecord:
        """Return a file's record. Raises ``UnknownId``."""
        row = self._database.execute(f"SELECT {FILE_COLUMNS} FROM files WHERE id = ?", (id,)).fetchone()
        if row is None or owner not in (None, row["owner"]):
            raise UnknownId(id)
        return FileRecord(**row)

    def files(
        self,
        *,
        limit: int,
        after: str | None,
        ascending: bool,
        purpose: str | None = None,
        owner: str | None = None,
    ) -> Page:
        """Return a page of files by age. Raises ``UnknownId`` if there is no ``after``."""
        filters = {"purpose": purpose, "owner": owner}
        rows, more = self._page("files", FILE_COLUMNS, filters, limit, after, ascending)
        return Page(items=tuple(FileRecord(**row) for row in rows), has_more=more)

    def file_ids(self) -> set[str]:
        """Return the ids of all files."""
        return {id for (id,) in self._database.execute("SELECT id FROM files")}

    def remove_file(self, id: str, owner: str | None = None) -> None:
        """Delete a file's record. Raises ``UnknownId``, and ``FileInUse`` while a batch reads it."""
        with self._transaction():
            self.file(id, owner)
            user = self._database.execute(
                f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {_placeholders(OPEN_STATUSES)}",
                (id, *OPEN_STATUSES),
            ).fetchone()
            if user is not None:
                raise FileInUse(user["id"])
            self._database.execute("DELETE FROM files WHERE id = ?", (id,))

    def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch. Raises ``UnknownId`` if its input is missing, ``StorageFull`` if there are too many batches."""
        with self._transaction():
            self.file(batch.input_file_id)
            self.check_room()
            (count,) = self._row(
                f"SELECT COUNT(*) FROM batches WHERE status IN {_placeholders(OPEN_STATUSES)}", *OPEN_STATUSES
            )
            if count >= MAX_OPEN_BATCHES:
                raise StorageFull(f"{count} batches are not over yet; wait until some are")
            values = _columns_of(batch)
            self._database.execute(
                f"INSERT INTO batches ({', '.join(values)}) VALUES {_placeholders(values)}", tuple(values.values())
            )
            self._database.execute(
                f"DELETE FROM batches WHERE status NOT IN {_placeholders(OPEN_STATUSES)} AND number <= "
                "(SELECT MAX(number) FROM batches) - ?",
                (*OPEN_STATUSES, MAX_KEPT_BATCHES),
            )

    def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch. Raises ``UnknownId``."""
        row = self._database.execute(f"SELECT {BATCH_COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
        if row is None or owner not in (None, row["owner"]):
            raise UnknownId(id)
        return _batch(row)

    def batches(self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None) -> Page:
        """Return a page of batches by age. Raises ``UnknownId`` if there is no ``after``."""
        rows, more = self._page("batches", BATCH_COLUMNS, {"owner": owner}, limit, after, ascending)
        return Page(items=tuple(map(_batch, rows)), has_more=more)

    def open_batches(self, model: str, abandoned_before: int) -> list[BatchRecord]:
        """Return open batches of ``model``, oldest first; those of other models if they expired before that time."""
        rows = self._database.execute(
            f"SELECT {BATCH_COLUMNS} FROM batches WHERE status IN {_placeholders(OPEN_STATUSES)} "
            "AND (model = ? OR expires_at < ?) ORDER BY number",
            (*OPEN_STATUSES, model, abandoned_before),
        )
        return [_batch(row) for row in rows]

    def move(
        self, id: str, to: Status, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if ``TRANSITIONS`` allows it; return the batch. Raises ``UnknownId``."""
        errors_json = json.dumps(list(errors)) if errors else None
        with self._transaction():
            return self._move(id, to, now, total=total, errors=errors_json) or self.batch(id)

    def add_results(self, id: str, results: Sequence[LineResult]) -> None:
        """Store results and count them, each line once; those of a batch that has ended are dropped.

        Raises ``StorageFull``.
        """
        with self._transaction():
            if self.batch(id).status not in ("in_progress", "cancelling"):
                return
            self._check_bytes(sum(len(result.payload) + 1 for result in results))
            counts, size, used = [0, 0], 0, dict.fromkeys(TOKENS, 0)
            for result in results:
                added = self._database.execute(
                    "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)",
                    (id, result.line, result.succeeded, result.payload),
                ).rowcount
                counts[result.succeeded] += added
                size += added * (len(result.payload) + 1)
                for name, tokens in asdict(result.usage).items():
                    used[name] += added * tokens
            sums = {"failed": counts[False], "completed": counts[True], "result_bytes": size, **used}
            changes = ", ".join(f"{name} = {name} + ?" for name in sums)
            self._database.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*sums.values(), id))

    def done_lines(self, id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""
        return {line for (line,) in self._database.execute("SELECT line FROM results WHERE batch = ?", (id,))}

    def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return some results, ordered by line: line number and payload."""
        rows = self._database.execute(
            "SELECT line, payload FROM results WHERE batch = ? AND succeeded = ? AND line > ? ORDER BY line LIMIT ?",
            (id, succeeded, after, limit),
        )
        return [(line, payload) for line, payload in rows]

    def finish(
        self,
        id: str,
        to: Status,
        now: int,
        *,
        output: FileRecord | None,
        error: FileRecord | None,
        errors: Sequence[Any] = (),
    ) -> BatchRecord | None:
        """End a batch: set its status, add its files and delete its results in one step.

        Returns ``None``, and changes nothing, if the batch's status does not lead to ``to`` any more.
        """
        with self._transaction():
            ids = {"output_file_id": output and output.id, "error_file_id": error and error.id}
            errors_json = json.dumps(list(errors)) if errors else None
            moved = self._move(id, to, now, **ids, result_bytes=0, errors=errors_json)
            if moved is not None:
                for file in filter(None, (output, error)):
                    self._insert_file(file)
                self._database.execute("DELETE FROM results WHERE batch = ?", (id,))
            return moved

    def _move(self, id: str, to: Status, now: int, **more: Any) -> BatchRecord | None:
        batch = self.batch(id)
        if to not in TRANSITIONS[batch.status]:
            return None
        changed = {name: value for name, value in more.items() if value is not None}
        values = {"status": to, f"{to}_at": now, **changed}
        changes = ", ".join(f"{name} = ?" for name in values)
        self._database.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*values.values(), id))
        return self.batch(id)

    def _insert_file(self, file: FileRecord) -> None:
        self._database.execute(
            f"INSERT INTO files ({FILE_COLUMNS}) VALUES {_placeholders(FILE_FIELDS)}",
            tuple(getattr(file, name) for name in FILE_FIELDS),
        )

    def _check_bytes(self, more: int) -> None:
        if self.used_bytes() + more > self._max_bytes:
            raise StorageFull(
                f"the storage would hold more than {self._max_bytes} bytes, the most that --max-storage-bytes allows; "
                "delete files"
            )

    def _page(
        self,
        table: str,
        columns: str,
        filters: Mapping[str, str | None],
        limit: int,
        after: str | None,
        ascending: bool,
    ) -> tuple[list[sqlite3.Row], bool]:
        """Return the rows whose columns have the values in ``filters`` (``None``: any), and whether there are more."""
        values: dict[str, Any] = {column: value for column, value in filters.items() if value is not None}
        where = " AND ".join(["TRUE", *(f"{column} = :{column}" for column in values)])
        values |= {"after": after, "limit": limit + 1}
        if after is not None:
            last = self._database.execute(
                f"SELECT number FROM {table} WHERE id = :after AND {where}", values
            ).fetchone()
            if last is None:
                raise UnknownId(after)
            where += f" AND number {'>' if ascending else '<'} :number"
            values["number"] = last["number"]
        order = "ASC" if ascending else "DESC"
        rows = self._database.execute(
            f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number {order} LIMIT :limit", values
        ).fetchall()
        return rows[:limit], len(rows) > limit

    def _row(self, statement: str, *values: Any) -> Any:
        return self._database.execute(statement, values).fetchone()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit everything or nothing; takes the write lock first, so that what was read stays true."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended the transaction already
                self._database.execute("ROLLBACK")
            raise


def _columns_of(batch: BatchRecord) -> dict[str, Any]:
    values = {name: getattr(batch, name) for name in BATCH_FIELDS}
    values["metadata"] = None if batch.metadata is None else json.dumps(dict(batch.metadata))
    values["errors"] = json.dumps(list(batch.errors))
    return values


def _batch(row: sqlite3.Row) -> BatchRecord:
    values = dict(row)
    values["metadata"] = None if values["metadata"] is None else json.loads(values["metadata"])
    values["errors"] = tuple(json.loads(values["errors"]))
    usage = TokenCounts(**{name: values.pop(name) for name in TOKENS})
    return BatchRecord(**values, usage=usage)


def _placeholders(values: Collection[Any]) -> str:
    """Return a placeholder for each value, in parentheses."""
    return f"({', '.join('?' * len(values))})"
