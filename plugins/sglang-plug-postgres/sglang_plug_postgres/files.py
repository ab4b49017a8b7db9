"""The table of files."""

from __future__ import annotations

from collections.abc import Mapping

from psycopg import sql

from sglang_plug import OPEN_BATCH_STATUSES, FileInUse, FileRecord, Page, StoreContext, UnknownId

from .contents import delete_content
from .database import Connection, Database
from .pages import page_rows
from .schema import FILE_COLUMNS, clean, file_of, file_values, insert

SELECT = sql.SQL("SELECT {} FROM files WHERE id = %s").format(FILE_COLUMNS)
USED_BYTES = """
    SELECT (SELECT COALESCE(SUM(bytes), 0) FROM files) + (SELECT COALESCE(SUM(result_bytes), 0) FROM batches) AS total
"""


class FileTable:
    """The files of all servers."""

    def __init__(self, database: Database, limits: StoreContext) -> None:
        self._database, self._limits = database, limits

    async def check_room(self) -> None:
        """Raise ``StorageFull`` unless another file fits."""
        await self._database.run(lambda connection: check_room(connection, self._limits, 0))

    async def add(self, file: FileRecord) -> None:
        """Register a file. Raises ``StorageFull``."""

        async def add(connection: Connection) -> None:
            await check_room(connection, self._limits, file.bytes)
            await insert_file(connection, file)

        await self._database.exclusively(add)

    async def get(self, id: str, owner: str | None) -> FileRecord:
        """Return a file's record. Raises ``UnknownId``."""
        return await self._database.run(lambda connection: find_file(connection, id, owner))

    async def page(
        self, filters: Mapping[str, str | None], limit: int, after: str | None, ascending: bool
    ) -> Page[FileRecord]:
        """Return a page of files. Raises ``UnknownId``."""
        rows, more = await self._database.run(
            lambda connection: page_rows(connection, "files", FILE_COLUMNS, filters, limit, after, ascending)
        )
        return Page(items=tuple(map(file_of, rows)), has_more=more)

    async def remove(self, id: str, owner: str | None) -> None:
        """Delete a file and its content. Raises ``UnknownId`` and ``FileInUse``."""

        async def remove(connection: Connection) -> None:
            await find_file(connection, id, owner)
            query = "SELECT id FROM batches WHERE input_file_id = %s AND status = ANY(%s) LIMIT 1"
            user = await (await connection.execute(query, (id, list(OPEN_BATCH_STATUSES)))).fetchone()
            if user is not None:
                raise FileInUse(user["id"])
            await connection.execute("DELETE FROM files WHERE id = %s", (id,))
            await delete_content(connection, id)

        await self._database.exclusively(remove)


async def check_room(connection: Connection, limits: StoreContext, more: int) -> None:
    """Raise ``StorageFull`` unless another file of ``more`` bytes fits."""
    row = await (await connection.execute("SELECT COUNT(*) AS total FROM files")).fetchone()
    assert row is not None
    limits.check_files(row["total"])
    limits.check_bytes(await used_bytes(connection) + more)


async def used_bytes(connection: Connection) -> int:
    """Return the bytes of all files and of the results that are in no file yet."""
    row = await (await connection.execute(USED_BYTES)).fetchone()
    assert row is not None
    return int(row["total"])


async def find_file(connection: Connection, id: str, owner: str | None = None) -> FileRecord:
    """Return a file's record. Raises ``UnknownId``."""
    row = await (await connection.execute(SELECT, (clean(id),))).fetchone()
    if row is None or owner not in (None, row["owner"]):
        raise UnknownId(id)
    return file_of(row)


async def insert_file(connection: Connection, file: FileRecord) -> None:
    """Insert a file's record."""
    values = file_values(file)
    await connection.execute(insert("files", values), values)
