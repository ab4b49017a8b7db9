"""The store ``postgres``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from sglang_plug import (
    BatchRecord,
    BatchStatus,
    ContentWriter,
    FileRecord,
    LineResult,
    Page,
    ResponseStore,
    Store,
    StoreContext,
)

from .batches import BatchTable
from .contents import ChunkWriter, read_chunks
from .database import Database
from .files import FileTable
from .lines import LineTable
from .responses import PostgresResponses
from .settings import Settings


class PostgresStore(Store):
    """Files, batches and responses in a schema that several servers share.

    Args:
        context: the limits. They are compared with what all servers have stored.
        settings: where the schema is.
    """

    def __init__(self, context: StoreContext, settings: Settings) -> None:
        self._database = Database(settings)
        self._files = FileTable(self._database, context)
        self._batches = BatchTable(self._database, context)
        self._lines = LineTable(self._database, context)
        self._responses = PostgresResponses(self._database, context)

    @property
    def location(self) -> str:
        """Host, database and schema."""
        return self._database.location

    @property
    def is_open(self) -> bool:
        """True if the database was connected."""
        return self._database.is_open

    @property
    def responses(self) -> ResponseStore:
        """The responses of all servers."""
        return self._responses

    async def close(self) -> None:
        """Close all connections."""
        await self._responses.close()
        await self._database.close()

    async def check_room(self) -> None:
        """Raise ``StorageFull`` unless another file fits."""
        await self._files.check_room()

    async def add_file(self, file: FileRecord) -> None:
        """Register a file."""
        await self._files.add(file)

    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        """Return a file's record."""
        return await self._files.get(id, owner)

    async def files(
        self, *, limit: int, after: str | None, ascending: bool, purpose: str | None = None, owner: str | None = None
    ) -> Page[FileRecord]:
        """Return a page of files."""
        return await self._files.page({"purpose": purpose, "owner": owner}, limit, after, ascending)

    async def remove_file(self, id: str, owner: str | None = None) -> None:
        """Delete a file and its content."""
        await self._files.remove(id, owner)

    async def create_content(self, id: str) -> ContentWriter:
        """Begin a content."""
        return ChunkWriter(self._database, id)

    def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield a content."""
        return read_chunks(self._database, id)

    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch."""
        await self._batches.add(batch)

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch."""
        return await self._batches.get(id, owner)

    async def batches(
        self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None
    ) -> Page[BatchRecord]:
        """Return a page of batches."""
        return await self._batches.page({"owner": owner}, limit, after, ascending)

    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        """Return open batches of ``model``, and abandoned ones of other models."""
        return await self._batches.open(model, abandoned_before)

    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if that is allowed."""
        return await self._batches.move(id, to, now, total=total, errors=errors)

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        """Claim lines."""
        return await self._lines.claim(id, list(lines), worker, seconds)

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let the claims of ``worker`` last longer."""
        await self._lines.renew(id, worker, seconds)

    async def release(self, id: str, worker: str) -> None:
        """End the claims of ``worker``."""
        await self._lines.release(id, worker)

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        """Store results and count them, each line once."""
        await self._lines.add_results(id, results, worker)

    async def done_lines(self, id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""
        return await self._lines.done(id)

    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return some results, ordered by line."""
        return await self._lines.results(id, succeeded, after, limit)

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
        return await self._batches.finish(id, to, now, output=output, error=error, errors=errors, worker=worker)
