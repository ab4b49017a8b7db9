"""The table of batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import sql

from sglang_plug import (
    BATCH_TRANSITIONS,
    OPEN_BATCH_STATUSES,
    WHOLE_BATCH,
    BatchRecord,
    BatchStatus,
    FileRecord,
    Page,
    StoreContext,
    UnknownId,
)

from .database import Connection, Database
from .files import check_room, find_file, insert_file
from .lines import is_held
from .pages import page_rows
from .schema import BATCH_COLUMNS, batch_of, batch_values, clean, insert, update

SELECT = sql.SQL("SELECT {} FROM batches WHERE id = %s").format(BATCH_COLUMNS)
SELECT_LOCKED = SELECT + sql.SQL(" FOR UPDATE")
SELECT_OPEN = sql.SQL(
    "SELECT {} FROM batches WHERE status = ANY(%s) AND (model = %s OR expires_at < %s) ORDER BY number"
).format(BATCH_COLUMNS)
OPEN = list(OPEN_BATCH_STATUSES)


class BatchTable:
    """The batches of all servers."""

    def __init__(self, database: Database, limits: StoreContext) -> None:
        self._database, self._limits = database, limits

    async def add(self, batch: BatchRecord) -> None:
        """Add a batch. Raises ``UnknownId`` and ``StorageFull``."""
        limits, values = self._limits, batch_values(batch)

        async def add(connection: Connection) -> None:
            await find_file(connection, batch.input_file_id)
            await check_room(connection, limits, 0)
            query = "SELECT COUNT(*) AS total FROM batches WHERE status = ANY(%s)"
            row = await (await connection.execute(query, (OPEN,))).fetchone()
            assert row is not None
            limits.check_open_batches(row["total"])
            await connection.execute(insert("batches", values), values)
            await connection.execute(
                "DELETE FROM batches WHERE status <> ALL(%s) AND number <= (SELECT MAX(number) FROM batches) - %s",
                (OPEN, limits.max_kept_batches),
            )

        await self._database.exclusively(add)

    async def get(self, id: str, owner: str | None) -> BatchRecord:
        """Return a batch. Raises ``UnknownId``."""
        return await self._database.run(lambda connection: _find(connection, SELECT, id, owner))

    async def page(
        self, filters: Mapping[str, str | None], limit: int, after: str | None, ascending: bool
    ) -> Page[BatchRecord]:
        """Return a page of batches. Raises ``UnknownId``."""
        rows, more = await self._database.run(
            lambda connection: page_rows(connection, "batches", BATCH_COLUMNS, filters, limit, after, ascending)
        )
        return Page(items=tuple(map(batch_of, rows)), has_more=more)

    async def open(self, model: str, abandoned_before: int) -> list[BatchRecord]:
        """Return open batches of ``model``, and abandoned ones of other models."""

        async def select(connection: Connection) -> list[dict[str, Any]]:
            return await (await connection.execute(SELECT_OPEN, (OPEN, clean(model), abandoned_before))).fetchall()

        return list(map(batch_of, await self._database.run(select)))

    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None, errors: Sequence[Any]
    ) -> BatchRecord:
        """Change a batch's status if that is allowed. Raises ``UnknownId``."""

        async def move(connection: Connection) -> BatchRecord:
            batch = await _find(connection, SELECT_LOCKED, id)
            if to not in BATCH_TRANSITIONS[batch.status]:
                return batch
            return await _move(connection, id, to, now, errors, total=total)

        return await self._database.run(move)

    async def finish(
        self,
        id: str,
        to: BatchStatus,
        now: int,
        *,
        output: FileRecord | None,
        error: FileRecord | None,
        errors: Sequence[Any],
        worker: str,
    ) -> BatchRecord | None:
        """End a batch; return ``None`` if that is not allowed any more, or if another worker holds it."""

        async def finish(connection: Connection) -> BatchRecord | None:
            batch = await _find(connection, SELECT_LOCKED, id)
            if to not in BATCH_TRANSITIONS[batch.status] or await is_held(connection, id, WHOLE_BATCH, worker):
                return None
            for file in filter(None, (output, error)):
                await insert_file(connection, file)
            await connection.execute("DELETE FROM results WHERE batch = %s", (id,))
            await connection.execute("DELETE FROM claims WHERE batch = %s", (id,))
            ids = {"output_file_id": output and output.id, "error_file_id": error and error.id}
            return await _move(connection, id, to, now, errors, result_bytes=0, **ids)

        return await self._database.exclusively(finish)


async def _find(connection: Connection, query: sql.Composed, id: str, owner: str | None = None) -> BatchRecord:
    row = await (await connection.execute(query, (clean(id),))).fetchone()
    if row is None or owner not in (None, row["owner"]):
        raise UnknownId(id)
    return batch_of(row)


async def _move(
    connection: Connection, id: str, to: BatchStatus, now: int, errors: Sequence[Any], **more: Any
) -> BatchRecord:
    changed = {name: value for name, value in more.items() if value is not None}
    values = {"status": to, f"{to}_at": now, **changed}
    if errors:
        values["errors"] = json.dumps(list(errors))
    await connection.execute(update("batches", values), values | {"id": id})
    return await _find(connection, SELECT, id)
