"""Tables of files, batches, results and claims: one SQLite database in which every change is one transaction.

A ``Database`` belongs to the thread that created it; ``SQLiteStore`` has a thread for it. Several processes may use one
database.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_plug import (
    BATCH_TRANSITIONS,
    OPEN_BATCH_STATUSES,
    WHOLE_BATCH,
    BatchRecord,
    BatchStatus,
    FileInUse,
    FileRecord,
    LineResult,
    Page,
    StorageBroken,
    StoreContext,
    UnknownId,
)

from .integrity import LOCK_TIMEOUT
from .schema import (
    BATCH_COLUMNS,
    FILE_COLUMNS,
    FILE_FIELDS,
    SCHEMA,
    TOKENS,
    UPGRADES,
    VERSION,
    batch_of,
    columns_of,
    placeholders,
)


class Database:
    """An open database.

    Methods with an ``owner`` ignore entries of other owners; ``None`` stands for all owners.

    Args:
        path: the database file; created if it is missing.
        limits: has the limits to keep.
    """

    def __init__(self, path: Path, limits: StoreContext) -> None:
        self._limits = limits
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
        self._limits.check_files(count)
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
    ) -> Page[FileRecord]:
        """Return a page of files by age. Raises ``UnknownId`` if there is no ``after``."""
        filters = {"purpose": purpose, "owner": owner}
        rows, more = self._page("files", FILE_COLUMNS, filters, limit, after, ascending)
        return Page(items=tuple(FileRecord(**row) for row in rows), has_more=more)

    def file_ids(self) -> set[str]:
        """Return the ids of all files."""
        return {id for (id,) in self._database.execute("SELECT id FROM files")}

    def remove_file(self, id: str, owner: str | None = None, prepare: Callable[[], object] | None = None) -> None:
        """Delete a file's record. Raises ``UnknownId``, and ``FileInUse`` while a batch reads it.

        ``prepare`` is called once nothing speaks against the deletion any more, before the record is deleted.
        """
        with self._transaction():
            self.file(id, owner)
            user = self._database.execute(
                f"SELECT id FROM batches WHERE input_file_id = ? AND status IN {placeholders(OPEN_BATCH_STATUSES)}",
                (id, *OPEN_BATCH_STATUSES),
            ).fetchone()
            if user is not None:
                raise FileInUse(user["id"])
            if prepare is not None:
                prepare()
            self._database.execute("DELETE FROM files WHERE id = ?", (id,))

    def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch. Raises ``UnknownId`` if its input is missing, ``StorageFull`` if there are too many batches."""
        with self._transaction():
            self.file(batch.input_file_id)
            self.check_room()
            (count,) = self._row(
                f"SELECT COUNT(*) FROM batches WHERE status IN {placeholders(OPEN_BATCH_STATUSES)}",
                *OPEN_BATCH_STATUSES,
            )
            self._limits.check_open_batches(count)
            values = columns_of(batch)
            self._database.execute(
                f"INSERT INTO batches ({', '.join(values)}) VALUES {placeholders(values)}", tuple(values.values())
            )
            self._database.execute(
                f"DELETE FROM batches WHERE status NOT IN {placeholders(OPEN_BATCH_STATUSES)} AND number <= "
                "(SELECT MAX(number) FROM batches) - ?",
                (*OPEN_BATCH_STATUSES, self._limits.max_kept_batches),
            )

    def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch. Raises ``UnknownId``."""
        row = self._database.execute(f"SELECT {BATCH_COLUMNS} FROM batches WHERE id = ?", (id,)).fetchone()
        if row is None or owner not in (None, row["owner"]):
            raise UnknownId(id)
        return batch_of(row)

    def batches(
        self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None
    ) -> Page[BatchRecord]:
        """Return a page of batches by age. Raises ``UnknownId`` if there is no ``after``."""
        rows, more = self._page("batches", BATCH_COLUMNS, {"owner": owner}, limit, after, ascending)
        return Page(items=tuple(map(batch_of, rows)), has_more=more)

    def open_batches(self, model: str, abandoned_before: int) -> list[BatchRecord]:
        """Return open batches of ``model``, oldest first; those of other models if they expired before that time."""
        rows = self._database.execute(
            f"SELECT {BATCH_COLUMNS} FROM batches WHERE status IN {placeholders(OPEN_BATCH_STATUSES)} "
            "AND (model = ? OR expires_at < ?) ORDER BY number",
            (*OPEN_BATCH_STATUSES, model, abandoned_before),
        )
        return [batch_of(row) for row in rows]

    def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if ``BATCH_TRANSITIONS`` allows it; return the batch. Raises ``UnknownId``."""
        errors_json = json.dumps(list(errors)) if errors else None
        with self._transaction():
            return self._move(id, to, now, total=total, errors=errors_json) or self.batch(id)

    def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        """Claim those of ``lines`` that have no result and that no other worker holds; return them."""
        now = time.time()
        with self._transaction():
            row = self._row("SELECT status FROM batches WHERE id = ?", id)
            if row is None or row["status"] not in OPEN_BATCH_STATUSES or self._is_held(id, WHOLE_BATCH, worker, now):
                return set()
            return {line for line in lines if self._claim_line(id, line, worker, now, seconds)}

    def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let the claims of ``worker`` in a batch last for ``seconds`` from now on."""
        with self._transaction():
            self._database.execute(
                "UPDATE claims SET until = ? WHERE batch = ? AND worker = ?", (time.time() + seconds, id, worker)
            )

    def release(self, id: str, worker: str) -> None:
        """End all claims of ``worker`` in a batch."""
        with self._transaction():
            self._database.execute("DELETE FROM claims WHERE batch = ? AND worker = ?", (id, worker))

    def release_all(self, model: str) -> None:
        """End all claims in batches of ``model``: the processes that had them do not run its batches any more."""
        with self._transaction():
            self._database.execute(
                "DELETE FROM claims WHERE batch IN (SELECT id FROM batches WHERE model = ?)", (model,)
            )

    def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        """Store results and count them, each line once; see ``Store.add_results`` for those that are dropped.

        Raises ``StorageFull``.
        """
        now = time.time()
        with self._transaction():
            if self.batch(id).status not in ("in_progress", "cancelling") or self._is_held(
                id, WHOLE_BATCH, worker, now
            ):
                return
            self._check_bytes(sum(len(result.payload) + 1 for result in results))
            counts, size, used = [0, 0], 0, dict.fromkeys(TOKENS, 0)
            for result in results:
                if self._is_held(id, result.line, worker, now):
                    continue
                added = self._database.execute(
                    "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)",
                    (id, result.line, result.succeeded, result.payload),
                ).rowcount
                counts[result.succeeded] += added
                size += added * (len(result.payload) + 1)
                for name, tokens in asdict(result.usage).items():
                    used[name] += added * tokens
                self._database.execute("DELETE FROM claims WHERE batch = ? AND line = ?", (id, result.line))
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
        to: BatchStatus,
        now: int,
        *,
        output: FileRecord | None,
        error: FileRecord | None,
        errors: Sequence[Any] = (),
        worker: str = "",
    ) -> BatchRecord | None:
        """End a batch: set its status, add its files, delete its results and its claims in one step.

        Returns ``None``, and changes nothing, if the batch's status does not lead to ``to`` any more, or if another
        worker holds the batch.
        """
        with self._transaction():
            if self._is_held(id, WHOLE_BATCH, worker, time.time()):
                return None
            ids = {"output_file_id": output and output.id, "error_file_id": error and error.id}
            errors_json = json.dumps(list(errors)) if errors else None
            moved = self._move(id, to, now, **ids, result_bytes=0, errors=errors_json)
            if moved is not None:
                for file in filter(None, (output, error)):
                    self._insert_file(file)
                for table in ("results", "claims"):
                    self._database.execute(f"DELETE FROM {table} WHERE batch = ?", (id,))
            return moved

    def _is_held(self, id: str, line: int, worker: str, now: float) -> bool:
        """Report whether another worker than ``worker`` holds a line."""
        row = self._row(
            "SELECT 1 FROM claims WHERE batch = ? AND line = ? AND worker <> ? AND until > ?", id, line, worker, now
        )
        return row is not None

    def _claim_line(self, id: str, line: int, worker: str, now: float, seconds: float) -> bool:
        changed = self._database.execute(
            "INSERT INTO claims SELECT ?, ?, ?, ? "
            "WHERE NOT EXISTS (SELECT 1 FROM results WHERE batch = ? AND line = ?) "
            "ON CONFLICT (batch, line) DO UPDATE SET worker = excluded.worker, until = excluded.until "
            "WHERE claims.worker = excluded.worker OR claims.until <= ?",
            (id, line, worker, now + seconds, id, line, now),
        ).rowcount
        return changed > 0

    def _move(self, id: str, to: BatchStatus, now: int, **more: Any) -> BatchRecord | None:
        batch = self.batch(id)
        if to not in BATCH_TRANSITIONS[batch.status]:
            return None
        changed = {name: value for name, value in more.items() if value is not None}
        values = {"status": to, f"{to}_at": now, **changed}
        changes = ", ".join(f"{name} = ?" for name in values)
        self._database.execute(f"UPDATE batches SET {changes} WHERE id = ?", (*values.values(), id))
        return self.batch(id)

    def _insert_file(self, file: FileRecord) -> None:
        self._database.execute(
            f"INSERT INTO files ({FILE_COLUMNS}) VALUES {placeholders(FILE_FIELDS)}",
            tuple(getattr(file, name) for name in FILE_FIELDS),
        )

    def _check_bytes(self, more: int) -> None:
        self._limits.check_bytes(self.used_bytes() + more)

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
