"""A store that adds something to another one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Any

from .records import BatchRecord, BatchStatus, FileRecord, LineResult, Page
from .responses import ResponseStore
from .store import ContentWriter, Store


class StoreWrapper(Store):
    """Passes every call on to another store; a subclass overrides those that it changes.

    Args:
        store: the other store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @property
    def location(self) -> str:
        """The location of the data."""
        return self.store.location

    @property
    def is_open(self) -> bool:
        """True if the store is open or connected."""
        return self.store.is_open

    @property
    def exists(self) -> bool:
        """False if nothing can be stored in it yet."""
        return self.store.exists

    @property
    def responses(self) -> ResponseStore | None:
        """The store of responses."""
        return self.store.responses

    async def close(self) -> None:
        """Free everything."""
        await self.store.close()

    async def check_room(self) -> None:
        """Raise ``StorageFull`` unless another file fits."""
        await self.store.check_room()

    async def add_file(self, file: FileRecord) -> None:
        """Register a file."""
        await self.store.add_file(file)

    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        """Return a file's record."""
        return await self.store.file(id, owner)

    async def files(
        self, *, limit: int, after: str | None, ascending: bool, purpose: str | None = None, owner: str | None = None
    ) -> Page[FileRecord]:
        """Return a page of files."""
        return await self.store.files(limit=limit, after=after, ascending=ascending, purpose=purpose, owner=owner)

    async def remove_file(self, id: str, owner: str | None = None) -> None:
        """Delete a file and its content."""
        await self.store.remove_file(id, owner)

    async def create_content(self, id: str) -> ContentWriter:
        """Begin a content."""
        return await self.store.create_content(id)

    def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        """Yield a content."""
        return self.store.read_content(id)

    def content_path(self, id: str) -> Path | None:
        """Return the local file that has a content."""
        return self.store.content_path(id)

    async def add_batch(self, batch: BatchRecord) -> None:
        """Add a batch."""
        await self.store.add_batch(batch)

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        """Return a batch."""
        return await self.store.batch(id, owner)

    async def batches(
        self, *, limit: int, after: str | None, ascending: bool = False, owner: str | None = None
    ) -> Page[BatchRecord]:
        """Return a page of batches."""
        return await self.store.batches(limit=limit, after=after, ascending=ascending, owner=owner)

    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        """Return open batches."""
        return await self.store.open_batches(model, abandoned_before)

    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        """Change a batch's status if that is allowed."""
        return await self.store.move(id, to, now, total=total, errors=errors)

    async def may_run_batches(self, model: str) -> bool:
        """Report whether this process may run batches now."""
        return await self.store.may_run_batches(model)

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        """Claim lines."""
        return await self.store.claim(id, lines, worker, seconds)

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let claims last longer."""
        await self.store.renew(id, worker, seconds)

    async def release(self, id: str, worker: str) -> None:
        """End claims."""
        await self.store.release(id, worker)

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        """Store results."""
        await self.store.add_results(id, results, worker)

    async def done_lines(self, id: str) -> set[int]:
        """Return the lines that have a result."""
        return await self.store.done_lines(id)

    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return some results."""
        return await self.store.results(id, succeeded, after=after, limit=limit)

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
        """End a batch."""
        return await self.store.finish(id, to, now, output=output, error=error, errors=errors, worker=worker)
