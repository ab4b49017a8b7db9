"""The table of files, batches and results: one SQLite database, every change one transaction.

A ``Store`` belongs to the thread that made it; ``storage.Storage`` keeps one in a thread of its own. Several
processes may use one database.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .models import MOVES, OPEN, BatchRecord, FileRecord, Page, Result, Status, TokenCounts

VERSION = 2
PATIENCE = 30.0
"""Seconds to wait for another process's transaction."""
MAX_OPEN_BATCHES = 1000
MAX_KEPT_BATCHES = 10_000
"""Batches that are over and still listed; the oldest are forgotten, their files stay."""

TOKENS = tuple(field.name for field in fields(TokenCounts))
"""Columns of a batch's usage."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, purpose TEXT NOT NULL,
    filename TEXT NOT NULL, bytes INTEGER NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
    input_file_id TEXT NOT NULL, completion_window TEXT NOT NULL, created_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, status TEXT NOT NULL, metadata TEXT, errors TEXT NOT NULL DEFAULT '[]',
    output_file_id TEXT, error_file_id TEXT, total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, {"".join(f"{name} INTEGER NOT NULL DEFAULT 0, " for name in TOKENS)}
    result_bytes INTEGER NOT NULL DEFAULT 0, in_progress_at INTEGER,
    finalizing_at INTEGER, completed_at INTEGER, failed_at INTEGER, expired_at INTEGER, cancelling_at INTEGER,
    cancelled_at INTEGER);
CREATE INDEX IF NOT EXISTS batches_by_status ON batches (status);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT NOT NULL, line INTEGER NOT NULL, succeeded INTEGER NOT NULL, payload BLOB NOT NULL,
    UNIQUE (batch, line));
"""
UPGRADES = {1: tuple(f"ALTER TABLE batches ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0" for name in TOKENS)}
"""Version of a database -> what makes it one of the next version."""
BATCH_FIELDS = tuple(field.name for field in fields(BatchRecord) if field.name != "usage")
BATCH_COLUMNS = ", ".join((*BATCH_FIELDS, *TOKENS))
FILE_COLUMNS = ", ".join(field.name for field in fields(FileRecord))


class StorageFull(Exception):
    """A limit on what is stored would be passed."""


class FileInUse(Exception):
    """A batch that is not over still reads the file."""


class UnknownId(Exception):
    """There is no such file or batch."""


class Store:
    """An open database.

    Args:
        path: its file; made if it is not there.
        max_files: most files.
        max_bytes: most bytes of files and unfinished results together.
    """

    def __init__(self, path: Path, *, max_files: int, max_bytes: int) -> None:
        self._max_files, self._max_bytes = max_files, max_bytes
        self._database = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            self._prepare(path)
        except BaseException:
            self._database.close()
            raise

    def _prepare(self, path: Path) -> None:
        self._database.row_factory = sqlite3.Row
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # what is committed survives a power cut
        with self._transaction():
            (version,) = self._row("PRAGMA user_version")
            if version not in (0, *UPGRADES, VERSION):
                raise sqlite3.DatabaseError(f"{path} was made by another version ({version}, this one is {VERSION})")
            upgrades = [statement for older in range(version or VERSION, VERSION) for statement in UPGRADES[older]]
            for statement in (*SCHEMA.split(";"), *upgrades):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def used_bytes(self) -> int:
        """Bytes of all files and of the results that are in no file yet."""
        (total,) = self._row(
            "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(result_bytes), 0) FROM batches)"
        )
        return int(total)

    def check_room(self, more: int = 0) -> None:
        """Raises ``StorageFull`` unless another file of ``more`` bytes fits."""
        (count,) = self._row("SELECT COUNT(*) FROM files")
        if count >= self._max_files:
            raise StorageFull(f"the storage holds {count} files, the most that --max-files allows; delete some")
        self._check_bytes(more)

    def add_file(self, file: FileRecord) -> None:
        """Register a file whose content is on disk. Raises ``StorageFull``."""
        with self._transaction():
            self.check_room(file.bytes)
            self._insert_file(file)

    def file(self, id: str) -> FileRecord:
        """Raises ``UnknownId``."""
        row = self._database.execute(f"SELECT {FILE_COLUMNS} FROM files WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise UnknownId(id)
        return FileRecord(**row)

    def files(self, *, limit: int, after: str | None, ascending: bool, purpose: str | None = None) -> Page:
        """Files by age. Raises ``UnknownId`` if there is no ``after``."""
        where, values = ("purpose = ?", [purpose]) if purpose is not None else ("TRUE", [])
        rows, more = self._page("files", FILE_COLUMNS, where, values, limit, after, ascending)
        return Page(items=tuple(FileRecord(**row) for row in rows), has_more=more)

    def file_ids(self) -> set[str]:
        """Every file's id."""
        return {id for (id,) in self._database.execute("SELECT id FROM files")}

    def remove_file(self, id: str) -> None:
        """Forget a file. Raises ``UnknownId``, and ``FileInUse`` while a batch reads it."""
        with self._transaction():
            self.file(id)
            user = self._database.execute(
                f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {_listed(OPEN)}", (id, *OPEN)
            ).fetchone()
            if user is not None:
                raise FileInUse(user["id"])
            self._database.execute("DELETE FROM files WHERE id = ?", (id,))

    def add_batch(self, batch: BatchRecord) -> None:
        """Raises ``UnknownId`` if its input is not there, ``StorageFull`` if there are too many."""
        with self._transaction():
            self.file(batch.input_file_id)
            self.check_room()
            (count,) = self._row(f"SELECT COUNT(*) FROM batches WHERE status IN {_listed(OPEN)}", *OPEN)
            if count >= MAX_OPEN_BATCHES:
                raise StorageFull(f"{count} batches are not over yet; wait until some are")
            values = _columns_of(batch)
            self._database.execute(
                f"INSERT INTO batches ({', '.join(values)}) VALUES {_listed(values)}", tuple(values.values())
            )
            self._database.execute(
                f"DELETE FROM batches WHERE status NOT IN {_listed(OPEN)} AND number <= "
                "(SELECT MAX(number) FROM batches) - ?",
                (*OPEN, MAX_KEPT_BATCHES),
            )

    def batch(self, id: str) -> BatchRecord:
        """Raises ``UnknownId``."""
        row = self._database.execute(f"SELECT {BATCH_COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise UnknownId(id)
        return _batch(row)

    def batches(self, *, limit: int, after: str | None, ascending: bool = False) -> Page:
        """Batches by age. Raises ``UnknownId`` if there is no ``after``."""
        rows, more = self._page("batches", BATCH_COLUMNS, "TRUE", [], limit, after, ascending)
        return Page(items=tuple(map(_batch, rows)), has_more=more)

    def open_batches(self, model: str, abandoned_before: int) -> list[BatchRecord]:
        """Batches of ``model`` that are not over, oldest first; others' if they expired before that time."""
        rows = self._database.execute(
            f"SELECT {BATCH_COLUMNS} FROM batches WHERE status IN {_listed(OPEN)} AND (model = ? OR expires_at < ?) "
            "ORDER BY number",
            (*OPEN, model, abandoned_before),
        )
        return [_batch(row) for row in rows]

    def move(
        self, id: str, to: Status, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if ``MOVES`` lets it; returns what it is then. Raises ``UnknownId``."""
        told = json.dumps(list(errors)) if errors else None
        with self._transaction():
            return self._move(id, to, now, total=total, errors=told) or self.batch(id)

    def add_results(self, id: str, results: Sequence[Result]) -> None:
        """Keep results and count them, each line once; those of a batch that is over are dropped.

        Raises ``StorageFull``.
        """
        with self._transaction():
            if self.batch(id).status not in ("in_progress", "cancelling"):
                return
            self._check_bytes(sum(len(one.payload) + 1 for one in results))
            counts, size, used = [0, 0], 0, dict.fromkeys(TOKENS, 0)
            for one in results:
                done = self._database.execute(
                    "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", (id, one.line, one.succeeded, one.payload)
                ).rowcount
                counts[one.succeeded] += done
                size += done * (len(one.payload) + 1)
                for name, tokens in asdict(one.usage).items():
                    used[name] += done * tokens
            added = {"failed": counts[False], "completed": counts[True], "result_bytes": size, **used}
            changes = ", ".join(f"{name} = {name} + ?" for name in added)
            self._database.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*added.values(), id))

    def done_lines(self, id: str) -> set[int]:
        """Numbers of the lines that have a result."""
        return {line for (line,) in self._database.execute("SELECT line FROM results WHERE batch = ?", (id,))}

    def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Some results in the order of the lines: line number and payload."""
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
        """End a batch: its status, its files and the end of its results in one step.

        Returns ``None``, and changes nothing, if the status has become one that does not lead to ``to``.
        """
        with self._transaction():
            ids = {"output_file_id": output and output.id, "error_file_id": error and error.id}
            told = json.dumps(list(errors)) if errors else None
            moved = self._move(id, to, now, **ids, result_bytes=0, errors=told)
            if moved is not None:
                for file in filter(None, (output, error)):
                    self._insert_file(file)
                self._database.execute("DELETE FROM results WHERE batch = ?", (id,))
            return moved

    def _move(self, id: str, to: Status, now: int, **more: Any) -> BatchRecord | None:
        batch = self.batch(id)
        if to not in MOVES[batch.status]:
            return None
        values = {"status": to, f"{to}_at": now, **{name: one for name, one in more.items() if one is not None}}
        changes = ", ".join(f"{name} = ?" for name in values)
        self._database.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*values.values(), id))
        return self.batch(id)

    def _insert_file(self, file: FileRecord) -> None:
        self._database.execute(
            f"INSERT INTO files ({FILE_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            (file.id, file.purpose, file.filename, file.bytes, file.created_at),
        )

    def _check_bytes(self, more: int) -> None:
        if self.used_bytes() + more > self._max_bytes:
            raise StorageFull(
                f"the storage would hold more than {self._max_bytes} bytes, the most that --max-storage-bytes allows; "
                "delete files"
            )

    def _page(
        self, table: str, columns: str, where: str, values: list[Any], limit: int, after: str | None, ascending: bool
    ) -> tuple[list[sqlite3.Row], bool]:
        if after is not None:
            found = self._database.execute(f"SELECT number FROM {table} WHERE id = ?", (after,)).fetchone()
            if found is None:
                raise UnknownId(after)
            where, values = f"{where} AND number {'>' if ascending else '<'} ?", [*values, found["number"]]
        order = "ASC" if ascending else "DESC"
        rows = self._database.execute(
            f"SELECT {columns} FROM {table} WHERE {where} ORDER BY number {order} LIMIT ?", (*values, limit + 1)
        ).fetchall()
        return rows[:limit], len(rows) > limit

    def _row(self, statement: str, *values: Any) -> Any:
        return self._database.execute(statement, values).fetchone()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing; takes the write lock first, so that what is read stays true."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # a full disk may have ended it already
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


def _listed(values: Collection[Any]) -> str:
    """A placeholder for each value, in parentheses."""
    return f"({', '.join('?' * len(values))})"
