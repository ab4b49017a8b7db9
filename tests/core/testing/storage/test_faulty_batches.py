"""The conformance test of stores finds faults in batches, their results and their claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sglang_plug import (
    BatchRecord,
    BatchStatus,
    FileRecord,
    LineResult,
    Page,
    StoreContext,
    TokenCounts,
    UnknownId,
)
from sglang_plug.testing import check_store
from tests.core.testing.storage.wrapped import Wrapped


class FullPagesOfBatchesHaveMore(Wrapped):
    async def batches(self, *, limit: int, **options: Any) -> Page[BatchRecord]:
        page = await super().batches(limit=limit, **options)
        return replace(page, has_more=len(page.items) == limit)


class ListsBatchesOfAll(Wrapped):
    async def batches(self, *, owner: str | None = None, **options: Any) -> Page[BatchRecord]:
        return await super().batches(**options)


class LosesMetadata(Wrapped):
    """Stores empty metadata where there are none."""

    async def add_batch(self, batch: BatchRecord) -> None:
        await super().add_batch(replace(batch, metadata=batch.metadata or {}))


class LosesTotal(Wrapped):
    """Loses the number of lines when the status changes."""

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        batch = await super().batch(id, owner)
        return batch if batch.status == "in_progress" else replace(batch, total=0)


class LosesErrors(Wrapped):
    async def move(
        self, id: str, to: BatchStatus, now: int, *, total: int | None = None, errors: Sequence[Any] = ()
    ) -> BatchRecord:
        return await super().move(id, to, now, total=total)


class CountsTokensOfSuccessOnly(Wrapped):
    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        kept = [result if result.succeeded else replace(result, usage=TokenCounts()) for result in results]
        await super().add_results(id, kept, worker)


class ForgetsReasoningTokens(Wrapped):
    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        kept = [replace(result, usage=replace(result.usage, reasoning_tokens=0)) for result in results]
        await super().add_results(id, kept, worker)


class CutsPayloads(Wrapped):
    """Truncates payloads to 64 KiB."""

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        await super().add_results(id, [replace(result, payload=result.payload[:65535]) for result in results], worker)


class AsciiPayloads(Wrapped):
    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        kept = [replace(result, payload=result.payload.decode("ascii", "ignore").encode()) for result in results]
        await super().add_results(id, kept, worker)


class StoresWhatFits(Wrapped):
    """Stores results one by one, so that a failure leaves a part of them."""

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        for result in results:
            await super().add_results(id, [result], worker)


class OnlySuccessIsDone(Wrapped):
    async def done_lines(self, id: str) -> set[int]:
        return {line for line, _ in await super().results(id, True, after=0, limit=1 << 20)}


class RepeatsResults(Wrapped):
    """Begins a page of results with the last line of the previous page."""

    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return await super().results(id, succeeded, after=max(0, after - 1), limit=limit)


class ResultsAsText(Wrapped):
    """Sorts line numbers as text, with 10 before 2."""

    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        rows = sorted(await super().results(id, succeeded, after=0, limit=1 << 20), key=lambda row: str(row[0]))
        return [row for row in rows if row[0] > after][:limit]


class AllResults(Wrapped):
    async def results(self, id: str, succeeded: bool, *, after: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return await super().results(id, succeeded, after=after, limit=1 << 20)


class ClaimsDoneLines(Wrapped):
    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        lines = set(lines)
        return await super().claim(id, lines, worker, seconds) | (lines & await super().done_lines(id))


class RenewsNothing(Wrapped):
    async def renew(self, id: str, worker: str, seconds: float) -> None:
        pass


class ReleasesNothing(Wrapped):
    async def release(self, id: str, worker: str) -> None:
        pass


class ReleasesAll(Wrapped):
    """Releases the claims of all workers."""

    workers: ClassVar[set[str]] = set()

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        self.workers.add(worker)
        return await super().claim(id, lines, worker, seconds)

    async def release(self, id: str, worker: str) -> None:
        for holder in self.workers:
            await super().release(id, holder)


class AllModels(Wrapped):
    """Returns the open batches of other models, too."""

    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        return await super().open_batches(model, 1 << 60)


class NewestFirst(Wrapped):
    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        return list(await super().open_batches(model, abandoned_before))[::-1]


class ForgetsAbandoned(Wrapped):
    async def open_batches(self, model: str, abandoned_before: int) -> Sequence[BatchRecord]:
        return await super().open_batches(model, 0)


class NoInputNeeded(Wrapped):
    """Adds a batch whose input file was deleted."""

    async def add_batch(self, batch: BatchRecord) -> None:
        with suppress(UnknownId):
            await super().add_batch(batch)


class ManyOpenBatches(Wrapped):
    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, replace(context, max_open_batches=1 << 30))


class KeepsOldBatches(Wrapped):
    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, replace(context, max_kept_batches=1 << 30))


class NoErrorFile(Wrapped):
    """Registers only one of the output and error files when a batch ends."""

    async def finish(
        self, id: str, to: BatchStatus, now: int, *, output: FileRecord | None, error: FileRecord | None, **more: Any
    ) -> BatchRecord | None:
        return await super().finish(id, to, now, output=output, error=None if output else error, **more)


class OwnerlessOutput(Wrapped):
    """Registers the files of a batch without their owner."""

    async def finish(
        self, id: str, to: BatchStatus, now: int, *, output: FileRecord | None, error: FileRecord | None, **more: Any
    ) -> BatchRecord | None:
        output = output and replace(output, owner="")
        return await super().finish(id, to, now, output=output, error=error, **more)


class RenewsAll(Wrapped):
    """Renews the claims of all workers."""

    workers: ClassVar[set[str]] = set()

    async def claim(self, id: str, lines: Iterable[int], worker: str, seconds: float) -> set[int]:
        self.workers.add(worker)
        return await super().claim(id, lines, worker, seconds)

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        for holder in self.workers:
            await super().renew(id, holder, seconds)


class RemovesAllResults(Wrapped):
    """Removes the results of all batches when one ends."""

    ended: ClassVar[set[str]] = set()

    async def finish(self, id: str, to: BatchStatus, now: int, **more: Any) -> BatchRecord | None:
        batch = await super().finish(id, to, now, **more)
        if batch is not None:
            self.ended.add(self.location)
        return batch

    async def done_lines(self, id: str) -> set[int]:
        return set() if self.location in self.ended else await super().done_lines(id)


class LosesUpdates(Wrapped):
    """Reads and writes the count of results in separate steps, so that concurrent updates are lost."""

    def __init__(self, folder: Path, context: StoreContext) -> None:
        super().__init__(folder, context)
        self.counts = dict[str, int]()

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str = "") -> None:
        counted = self.counts.get(id, 0)
        before = (await super().batch(id)).completed
        await super().add_results(id, results, worker)
        self.counts[id] = counted + (await super().batch(id)).completed - before

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        batch = await super().batch(id, owner)
        return replace(batch, completed=self.counts.get(id, batch.completed))


class KeyErrors(Wrapped):
    """Raises ``KeyError`` for an unknown id."""

    async def batch(self, id: str, owner: str | None = None) -> BatchRecord:
        try:
            return await super().batch(id, owner)
        except UnknownId:
            raise KeyError(id) from None


@pytest.mark.planted_bug("store")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (FullPagesOfBatchesHaveMore, "is empty although"),
        (ListsBatchesOfAll, "batches of other owners are listed"),
        (LosesMetadata, "the metadata None is not as it was added"),
        (LosesTotal, "results of a batch that has ended are counted|finish.. makes"),
        (LosesErrors, "move.. does not keep the errors"),
        (CountsTokensOfSuccessOnly, "the usage is"),
        (ForgetsReasoningTokens, "the usage is"),
        (CutsPayloads, "a payload was changed"),
        (AsciiPayloads, "a payload was changed"),
        (StoresWhatFits, "although there was no room for all"),
        (OnlySuccessIsDone, "not all lines that have a result"),
        (RepeatsResults, "results.. ignores after"),
        (ResultsAsText, "not ordered by line"),
        (AllResults, "results.. ignores limit"),
        (ClaimsDoneLines, "a line that has a result"),
        (RenewsNothing, "lines whose claim is over"),
        (RenewsAll, "after the claims of another one are over"),
        (ReleasesNothing, "lines that were released"),
        (ReleasesAll, "after another one released its lines"),
        (AllModels, "open_batches.. returns"),
        (NewestFirst, "open_batches.. returns"),
        (ForgetsAbandoned, "open_batches.. returns"),
        (NoInputNeeded, "a batch without input did not raise"),
        (ManyOpenBatches, "beyond max_open_batches"),
        (KeepsOldBatches, "the latest must be kept"),
        (NoErrorFile, "finish.. makes"),
        (OwnerlessOutput, "does not register the file output as it was given"),
        (RemovesAllResults, "removes the results of another batch"),
        (LosesUpdates, "a line was counted more than once|not all lines|were counted as"),
        (KeyErrors, "KeyError"),
    ],
)
def test_what_is_wrong_is_named(make: Callable[[Path, StoreContext], Wrapped], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_store(make, kills=0)
