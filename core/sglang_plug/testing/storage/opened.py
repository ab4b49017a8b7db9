"""Stores that a conformance test opens, and what it puts into them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sglang_plug.contracts.storage.records import BatchRecord, FileRecord, LineResult, Page, TokenCounts
from sglang_plug.contracts.storage.store import Store, StoreContext

OpenStore = Callable[[Path, StoreContext], Store]
"""Opens the store that belongs to a folder."""
Record = TypeVar("Record", FileRecord, BatchRecord)
NOW = 1_700_000_000
INPUT = "input"


class Servers:
    """Stores of one folder, as several servers open them; all are closed at the end."""

    def __init__(self, make: OpenStore, folder: Path) -> None:
        self.make, self.folder = make, folder
        self._stores: list[Store] = []

    def open(self, **limits: Any) -> Store:
        """Return the store of another server."""
        store = self.make(self.folder, StoreContext(**limits))
        assert isinstance(store, Store), f"{type(store).__name__} is not a Store"
        self._stores.append(store)
        return store

    async def __aenter__(self) -> Servers:
        self.folder.mkdir(parents=True)
        return self

    async def __aexit__(self, *error: object) -> None:
        for store in self._stores:
            await store.close()
            await store.close()


def file_record(id: str, **changes: Any) -> FileRecord:
    """Return the record of a file of 10 bytes."""
    return replace(FileRecord(id=id, purpose="batch", filename="ä.jsonl", bytes=10, created_at=NOW), **changes)


def batch_record(id: str, **changes: Any) -> BatchRecord:
    """Return a batch of the file ``INPUT``."""
    batch = BatchRecord(
        id=id,
        model="demo",
        endpoint="/v1/completions",
        input_file_id=INPUT,
        completion_window="24h",
        created_at=NOW,
        expires_at=2 * NOW,
    )
    return replace(batch, **changes)


def result(line: int, succeeded: bool = True) -> LineResult:
    """Return the result of a line."""
    usage = TokenCounts(input_tokens=line, cached_tokens=1, output_tokens=2 * line, reasoning_tokens=3)
    return LineResult(line=line, succeeded=succeeded, payload=f"result {line}".encode(), usage=usage)


async def add_file(store: Store, file: FileRecord, content: bytes) -> None:
    """Store a file with its content."""
    writer = await store.create_content(file.id)
    await writer.write(content)
    await writer.commit()
    await store.add_file(file)


async def add_batch(store: Store, id: str = "batch", **changes: Any) -> BatchRecord:
    """Store a batch, and its input if it is the first one."""
    if not (await store.files(limit=1, after=None, ascending=True)).items:
        await add_file(store, file_record(INPUT), b"0123456789")
    batch = batch_record(id, **changes)
    await store.add_batch(batch)
    return batch


async def running_batch(store: Store) -> str:
    """Store a batch whose lines may run; return its id."""
    batch = await add_batch(store)
    await store.move(batch.id, "in_progress", NOW, total=200)
    return batch.id


async def listed(pages: Callable[..., Awaitable[Page[Record]]], limit: int) -> list[Record]:
    """Return the entries of all pages with at most ``limit`` entries each."""
    records: list[Record] = []
    after, more = None, True
    while more:
        page = await pages(limit=limit, after=after)
        assert len(page.items) <= limit, f"a page of at most {limit} entries has {len(page.items)}"
        assert page.items, f"a page of at most {limit} entries is empty although the one before it has has_more"
        records += page.items
        after, more = page.items[-1].id, page.has_more
    return records


async def refused(work: Awaitable[object], error: type[Exception], case: str) -> Exception:
    """Check that a call raises ``error``; return what it raised."""
    try:
        await work
    except error as raised:
        return raised
    raise AssertionError(f"{case} did not raise {error.__name__}")
