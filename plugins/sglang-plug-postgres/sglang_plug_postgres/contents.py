"""Contents of files, in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from functools import partial

from sglang_plug import ContentMissing, ContentWriter, StorageError

from .database import Connection, Database
from .schema import clean

CHUNK = 256 << 10
"""Bytes of every chunk of a content but the last, which has fewer."""


class ChunkWriter(ContentWriter):
    """A content that is being written: each chunk is stored as soon as it is full."""

    def __init__(self, database: Database, id: str) -> None:
        self._database, self._id = database, id
        self._pending = bytearray()
        self._chunks = 0
        self.size = 0

    async def write(self, data: bytes | bytearray) -> None:
        """Append ``data``."""
        self.size += len(data)
        self._pending += data
        while len(self._pending) >= CHUNK:
            await self._store(bytes(self._pending[:CHUNK]))
            del self._pending[:CHUNK]

    async def commit(self) -> None:
        """Store the last chunk, which may be empty."""
        await self._store(bytes(self._pending))

    async def discard(self) -> None:
        """Remove the chunks; those that remain after a failure are removed later, like those of killed servers."""
        with contextlib.suppress(StorageError):
            await self._database.run(lambda connection: delete_content(connection, self._id))

    async def _store(self, data: bytes) -> None:
        values = (self._id, self._chunks, data)

        async def insert(connection: Connection) -> None:
            await connection.execute("INSERT INTO chunks (file, number, data) VALUES (%s, %s, %b)", values)

        await self._database.run(insert)
        self._chunks += 1


async def delete_content(connection: Connection, id: str) -> None:
    """Delete the chunks of a content."""
    await connection.execute("DELETE FROM chunks WHERE file = %s", (id,))


async def read_chunks(database: Database, id: str) -> AsyncGenerator[bytes, None]:
    """Yield a content. Raises ``ContentMissing``, also if it is deleted meanwhile."""
    number, size = 0, CHUNK
    while size == CHUNK:
        data = await database.run(partial(_chunk, id, number))
        if data is None:
            raise ContentMissing(id)
        if data:
            yield data
        number, size = number + 1, len(data)


async def _chunk(id: str, number: int, connection: Connection) -> bytes | None:
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute("SELECT data FROM chunks WHERE file = %s AND number = %s", (clean(id), number))
        row = await cursor.fetchone()
    return None if row is None else bytes(row["data"])
