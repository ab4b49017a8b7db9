"""The conformance test of stores finds faults in files, their pages and their contents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import (
    ContentMissing,
    ContentWriter,
    FileInUse,
    FileRecord,
    Page,
    StorageFull,
    StorageUnavailable,
    StoreContext,
    UnknownId,
)
from sglang_plug.testing import check_store
from tests.core.testing.storage.wrapped import Wrapped


class SortsByTime(Wrapped):
    """Sorts by time of creation, which does not order files of the same second."""

    async def files(self, *, limit: int, after: str | None, **filters: Any) -> Page[FileRecord]:
        files = list((await super().files(limit=1000, after=None, **filters)).items)
        step = 1 if filters["ascending"] else -1
        files.sort(key=lambda file: (step * file.created_at, file.id))
        ids = [file.id for file in files]
        if after is not None and after not in ids:
            raise UnknownId(after)
        start = 0 if after is None else ids.index(after) + 1
        return Page(items=tuple(files[start : start + limit]), has_more=len(files) > start + limit)


class FiltersPages(Wrapped):
    """Filters by purpose after the page was selected."""

    async def files(self, *, purpose: str | None = None, **options: Any) -> Page[FileRecord]:
        page = await super().files(**options)
        return replace(page, items=tuple(file for file in page.items if purpose in (None, file.purpose)))


class FullPagesHaveMore(Wrapped):
    """Reports that more files follow each full page."""

    async def files(self, *, limit: int, **options: Any) -> Page[FileRecord]:
        page = await super().files(limit=limit, **options)
        return replace(page, has_more=len(page.items) == limit)


class StartsAgainAfterUnknown(Wrapped):
    """Restarts with the first page if the last entry of the previous page was removed."""

    async def files(self, *, after: str | None, **options: Any) -> Page[FileRecord]:
        try:
            return await super().files(after=after, **options)
        except UnknownId:
            return await super().files(after=None, **options)


class RemovesForAnybody(Wrapped):
    async def remove_file(self, id: str, owner: str | None = None) -> None:
        await super().remove_file(id)


class RemovesNeighbours(Wrapped):
    """Removes every file whose id begins with the given one."""

    async def remove_file(self, id: str, owner: str | None = None) -> None:
        await super().remove_file(id, owner)
        page = await super().files(limit=1000, after=None, ascending=True)
        for file in page.items:
            if file.id.startswith(id):
                await super().remove_file(file.id)


class RemovesInputs(Wrapped):
    """Removes a file that an open batch reads."""

    async def remove_file(self, id: str, owner: str | None = None) -> None:
        with suppress(FileInUse):
            await super().remove_file(id, owner)


class AsciiNames(Wrapped):
    async def add_file(self, file: FileRecord) -> None:
        await super().add_file(replace(file, filename=file.filename.encode("ascii", "replace").decode()))


class CleansNames(Wrapped):
    """Treats the client's file name as a path."""

    async def add_file(self, file: FileRecord) -> None:
        await super().add_file(replace(file, filename=Path(file.filename).name))


class NoEmptyContent(Wrapped):
    async def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        is_empty = True
        async for part in super().read_content(id):
            is_empty = False
            yield part
        if is_empty:
            raise ContentMissing(id)


class MissingIsEmpty(Wrapped):
    async def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        with suppress(ContentMissing):
            async for part in super().read_content(id):
                yield part


class OneContentAtATime(Wrapped):
    """Writes all contents to the file that was created last."""

    writer: ContentWriter | None = None

    async def create_content(self, id: str) -> ContentWriter:
        self.writer = await super().create_content(id)
        return SharedWriter(self)


class SharedWriter(ContentWriter):
    def __init__(self, store: OneContentAtATime) -> None:
        self._store, self._own = store, store.writer
        self.size = 0

    async def write(self, data: bytes | bytearray) -> None:
        assert self._store.writer is not None
        await self._store.writer.write(data)
        self.size += len(data)

    async def commit(self) -> None:
        assert self._own is not None
        await self._own.commit()

    async def discard(self) -> None:
        assert self._own is not None
        await self._own.discard()


class CountsNothing(ContentWriter):
    """A content writer that always reports a size of 0."""

    def __init__(self, writer: ContentWriter) -> None:
        self._writer, self.size = writer, 0

    async def write(self, data: bytes | bytearray) -> None:
        await self._writer.write(data)

    async def commit(self) -> None:
        await self._writer.commit()

    async def discard(self) -> None:
        await self._writer.discard()


class WithoutSize(Wrapped):
    async def create_content(self, id: str) -> ContentWriter:
        return CountsNothing(await super().create_content(id))


class KeepsCommitted(CountsNothing):
    """A content writer that does not discard what was committed."""

    committed = False

    async def write(self, data: bytes | bytearray) -> None:
        await super().write(data)
        self.size += len(data)

    async def commit(self) -> None:
        await super().commit()
        self.committed = True

    async def discard(self) -> None:
        if not self.committed:
            await super().discard()


class CannotDiscard(Wrapped):
    async def create_content(self, id: str) -> ContentWriter:
        return KeepsCommitted(await super().create_content(id))


class ManyFiles(Wrapped):
    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, replace(context, max_files=1 << 30))


class ChecksRoomLate(Wrapped):
    async def check_room(self) -> None:
        pass


class ClosesForGood(Wrapped):
    """A store that cannot be used after ``close``."""

    closed = False

    async def close(self) -> None:
        await super().close()
        self.closed = True

    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        if self.closed:
            raise RuntimeError("the store is closed")
        return await super().file(id, owner)


class ClosesOnce(Wrapped):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("the store is closed")
        self.closed = True
        await super().close()


class ClosesUnderCalls(Wrapped):
    """A store whose running calls fail when it is closed."""

    closed = 0

    async def add_file(self, file: FileRecord) -> None:
        before = self.closed
        await asyncio.sleep(0)
        if self.closed != before:
            raise StorageUnavailable("the connection was closed")
        await super().add_file(file)

    async def close(self) -> None:
        self.closed += 1
        await super().close()


class FullIsUnavailable(Wrapped):
    async def add_file(self, file: FileRecord) -> None:
        try:
            await super().add_file(file)
        except StorageFull as error:
            raise OSError(str(error)) from error


@pytest.mark.planted_bug("store")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (SortsByTime, "the pages of files with ascending=True"),
        (FiltersPages, "is empty although"),
        (FullPagesHaveMore, "is empty although"),
        (StartsAgainAfterUnknown, "a page after an unknown file did not raise"),
        (RemovesForAnybody, "remove_file.. of another owner did not raise"),
        (RemovesNeighbours, "removes other files"),
        (RemovesInputs, "of the input of an open batch did not raise FileInUse"),
        (AsciiNames, "a file is not as it was added"),
        (CleansNames, "the filename .* is not as it was added"),
        (NoEmptyContent, "ContentMissing: content-0"),
        (MissingIsEmpty, "of a removed file did not raise ContentMissing"),
        (OneContentAtATime, "written together are mixed up"),
        (WithoutSize, "size is 0 after 1 bytes"),
        (CannotDiscard, "of a discarded content did not raise"),
        (ManyFiles, "with max_files files"),
        (ChecksRoomLate, "check_room.. with max_files files did not raise"),
        (ClosesForGood, "the store is closed"),
        (ClosesOnce, "the store is closed"),
        (ClosesUnderCalls, "the connection was closed"),
        (FullIsUnavailable, "OSError"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[Path, StoreContext], Wrapped], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_store(make, kills=0)
