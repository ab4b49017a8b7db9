"""The conformance test of stores accepts the built-in one and names the faults of others."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sglang_plug import (
    WHOLE_BATCH,
    BatchRecord,
    BatchStatus,
    ContentWriter,
    FileRecord,
    LineResult,
    Page,
    PluginError,
    ResponseEvent,
    ResponseRecord,
    ResponseStore,
    StoreContext,
    UnknownId,
)
from sglang_plug.testing import check_store
from sglang_plug_api.responses.store import MemoryResponses
from sglang_plug_api.stores.sqlite.example import open_store
from sglang_plug_api.stores.sqlite.store import DATABASE, SQLiteStore


def test_the_built_in_store_conforms() -> None:
    check_store(open_store)


def test_a_store_is_found_by_its_name() -> None:
    check_store("sqlite")
    with pytest.raises(PluginError, match="oracle"):
        check_store("oracle")


class Broken(SQLiteStore):
    """The built-in store, of which subclasses change one method."""

    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(replace(context, folder=str(folder)))

    def execute(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        """Run a statement on the store's database file, and return the rows."""
        with closing(sqlite3.connect(self.folder / DATABASE, isolation_level=None)) as database:
            database.row_factory = sqlite3.Row
            return database.execute(statement, values).fetchall()


class ForgetsAtClose(Broken):
    async def close(self) -> None:
        self.execute("DELETE FROM files")
        await super().close()


class ShowsFilesToAll(Broken):
    async def file(self, id: str, owner: str | None = None) -> FileRecord:
        return await super().file(id)


class RepeatsOnPages(Broken):
    """Begins a page with the last entry of the previous page."""

    async def files(self, *, limit: int, after: str | None, **filters: Any) -> Page[FileRecord]:
        page = await super().files(limit=limit, after=after, **filters)
        last = () if after is None else (await self.file(after),)
        return Page(items=(*last, *page.items)[:limit], has_more=page.has_more)


class KeepsContents(Broken):
    async def remove_file(self, id: str, owner: str | None = None) -> None:
        await self.call(lambda database: database.remove_file(id, owner))


class LosesTheEnd(Broken):
    """Yields only the first part of a content."""

    async def read_content(self, id: str) -> AsyncGenerator[bytes, None]:
        async for part in super().read_content(id):
            yield part
            return


class Keeps(ContentWriter):
    """A content writer that writes the caller's buffers only when it commits."""

    def __init__(self, writer: ContentWriter) -> None:
        self._writer, self._parts, self.size = writer, list[bytes | bytearray](), 0

    async def write(self, data: bytes | bytearray) -> None:
        self._parts.append(data)
        self.size += len(data)

    async def commit(self) -> None:
        for part in self._parts:
            await self._writer.write(part)
        await self._writer.commit()

    async def discard(self) -> None:
        await self._writer.discard()


class KeepsBuffers(Broken):
    async def create_content(self, id: str) -> ContentWriter:
        return Keeps(await super().create_content(id))


class HasNoLimits(Broken):
    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, replace(context, max_bytes=1 << 60))


class AllowsEverything(Broken):
    """Accepts any change of the status."""

    async def move(self, id: str, to: BatchStatus, now: int, **more: Any) -> BatchRecord:
        if to == "validating":
            return await super().move(id, to, now, **more)
        self.execute(f"UPDATE batches SET status = ?, {to}_at = ? WHERE id = ?", to, now, id)
        return await self.batch(id)


class CountsTwice(Broken):
    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        await super().add_results(id, results, worker)
        self.execute("UPDATE batches SET completed = completed + 1 WHERE id = ? AND status = 'in_progress'", id)


class IgnoresClaims(Broken):
    """Accepts results of workers that have not claimed the line."""

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        holders = self.execute("SELECT worker FROM claims WHERE batch = ? AND line = ?", id, results[0].line)
        await super().add_results(id, results, holders[0]["worker"] if holders else worker)


class ClaimsForever(Broken):
    """Renews claims so that they never expire."""

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        await super().renew(id, worker, max(seconds, 1e9))


class ClaimsTwice(Broken):
    """Reads the free lines and claims them in separate steps, so that two workers can claim one line."""

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        lines = list(lines)
        held = "SELECT line FROM claims WHERE batch = ? AND worker <> ? AND until > ?"

        rows = self.execute(held, id, worker, time.time())
        before = {row["line"] for row in rows} | await self.call(lambda database: database.done_lines(id))
        free = set() if WHOLE_BATCH in before else set(lines) - before
        try:
            open = (await self.batch(id)).status in ("validating", "in_progress", "finalizing", "cancelling")
        except UnknownId:
            open = False
        await super().claim(id, free, worker, seconds)
        return free if open else set()


class SharesTheWhole(Broken):
    """Lets several workers claim a whole batch."""

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        lines = list(lines)
        claimed = await super().claim(id, [line for line in lines if line != WHOLE_BATCH], worker, seconds)
        return claimed | ({WHOLE_BATCH} & set(lines))


class FinishesTwice(Broken):
    """Checks the status before it ends the batch, in a separate step."""

    async def finish(self, id: str, to: BatchStatus, now: int, **more: Any) -> BatchRecord | None:
        before = (await self.batch(id)).status
        ended = await super().finish(id, to, now, **more)
        return await self.batch(id) if before == "finalizing" else ended


@pytest.mark.planted_bug("store")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (ForgetsAtClose, "file"),
        (ShowsFilesToAll, "file.. of another owner did not raise"),
        (RepeatsOnPages, "not all files in their order"),
        (KeepsContents, "read_content.. of a removed file did not raise"),
        (LosesTheEnd, "is not returned as it was written"),
        (KeepsBuffers, "is not returned as it was written"),
        (HasNoLimits, "beyond max_bytes did not raise StorageFull"),
        (AllowsEverything, "changes"),
        (CountsTwice, "counted"),
        (IgnoresClaims, "of a line that another worker holds is stored"),
        (ClaimsForever, "lines whose claim is over"),
        (ClaimsTwice, "claimed by two workers"),
        (SharesTheWhole, "holds as a whole returns"),
        (FinishesTwice, "finish.. ended a batch [0-9] times"),
    ],
)
def test_what_is_wrong_is_named(make: Any, message: str) -> None:
    with pytest.raises((AssertionError, UnknownId), match=message):
        check_store(make, kills=0)


class LosesResults(SQLiteStore):
    """Loses the results of the worker ``killed``, as if they were stored after the call returned."""

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        if worker != "killed":
            await super().add_results(id, results, worker)


def open_forgetful(folder: Path, context: StoreContext) -> SQLiteStore:
    """Open a store that loses the results of the worker ``killed``."""
    return LosesResults(replace(context, folder=str(folder)))


@pytest.mark.planted_bug("store")
def test_results_that_are_lost_when_a_process_is_killed_are_named() -> None:
    with pytest.raises(AssertionError, match="are lost when the process is killed"):
        check_store(open_forgetful)


class Remembering(Broken):
    """The built-in store with responses in memory, which all stores of a folder share."""

    kind: ClassVar[type[MemoryResponses]] = MemoryResponses
    shared: ClassVar[dict[tuple[Path, StoreContext], MemoryResponses]] = {}

    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, context)
        memory = self.kind(context.max_responses, context.max_response_bytes)
        self._responses = self.shared.setdefault((folder, context), memory)

    @property
    def responses(self) -> ResponseStore:
        return self._responses


def test_responses_in_memory_conform() -> None:
    check_store(Remembering, kills=0)


class ShowsResponsesToAll(MemoryResponses):
    async def get(self, id: str, owner: str | None = None) -> ResponseRecord | None:
        return await super().get(id)


class ForgetsUses(MemoryResponses):
    """Removes the response that was stored first, even if it was used recently."""

    async def get(self, id: str, owner: str | None = None) -> ResponseRecord | None:
        return self._response(id, owner)


class KeepsEverything(MemoryResponses):
    def __init__(self, limit: int, limit_bytes: int) -> None:
        super().__init__(limit, 1 << 40)


class DropsEvents(MemoryResponses):
    """Returns no events of responses that have ended."""

    async def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        if id in self._running:
            async for event in super().read_events(id, after):
                yield event


class EndsEarly(MemoryResponses):
    """Ends the stream instead of waiting for further events."""

    async def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        if (running := self._running.get(id)) is not None:
            for event in running.events._events[after + 1 :]:
                yield event
        else:
            async for event in super().read_events(id, after):
                yield event


class NeverStops(MemoryResponses):
    async def renew(self, ids: Iterable[str], seconds: float) -> set[str]:
        await super().renew(ids, seconds)
        return set()


class RestoresDeleted(MemoryResponses):
    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        if (running := self._running.get(response.id)) is not None:
            running.is_deleted = False
        await super().put(response, seconds)


class NeverAbandoned(MemoryResponses):
    async def is_abandoned(self, id: str) -> bool:
        return False


@pytest.mark.planted_bug("store")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ShowsResponsesToAll, "a response of another owner"),
        (ForgetsUses, "that were used last must be kept"),
        (KeepsEverything, "larger than max_response_bytes"),
        (DropsEvents, "cannot be read after|does not return those after it"),
        (EndsEarly, "read_events|readers do not wait"),
        (NeverStops, "what was cancelled or deleted"),
        (RestoresDeleted, "deleted while it was running is stored again"),
        (NeverAbandoned, "whose time is over"),
    ],
)
def test_what_is_wrong_with_responses_is_named(kind: type[MemoryResponses], message: str) -> None:
    class Store(Remembering):
        pass

    Store.kind, Store.shared = kind, {}
    with pytest.raises(AssertionError, match=message):
        check_store(Store, kills=0)
