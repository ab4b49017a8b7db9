"""Execution of one batch, from whatever state it was left in to its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from sglang_plug import (
    WHOLE_BATCH,
    BatchRecord,
    BatchStatus,
    ContentMissing,
    EngineError,
    LineResult,
    StorageError,
    StorageFull,
    Store,
)

from .admission import AdmittedLine, BatchAdmission
from .lines import Line, LineError, check_file, read_lines
from .outputs import ResultFiles, line_result
from .route_call import EngineBusy, RouteAnswer

logger = logging.getLogger(__name__)

RouteCall = Callable[[str, bytes], Awaitable[RouteAnswer]]
"""Answers ``POST path`` with a body, see ``route_call.call_route``."""
Faults = Sequence[Mapping[str, Any]]
"""Entries of a batch's ``errors``."""
CLAIMED_TOGETHER = 32
"""Maximum number of lines that are claimed before the first of them starts."""


class ConcurrencyLimits:
    """Limits shared by all jobs: files that are checked together, and batches whose lines run together."""

    def __init__(self, *, checks: int, lines: int) -> None:
        self.checks = asyncio.Semaphore(checks)
        self.lines = asyncio.Semaphore(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """Limits of input files."""

    lines: int
    """Maximum number of requests in one file."""
    line_bytes: int
    """Longest line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """Durations of a job, in seconds."""

    claim: float = 30.0
    """Time after which other servers continue what a server that died was working on."""
    busy_pause: float = 0.5
    """Time before a line is tried again after the engine's queue was full, or after all requests were aborted."""
    others_pause: float = 1.0
    """Time between two looks at lines that other servers have claimed."""


class BatchJob:
    """Runs a batch, together with the other servers that have claimed parts of it.

    Every result is stored before it is counted, so a job can be stopped at any moment.

    Args:
        batch: the batch's record in the store.
        store: the store of the batch and its files.
        call: runs a line.
        admission: decides when a line starts.
        concurrency: limits shared by all batches.
        limits: limits of the input.
        worker: the name of this server in claims.
        timing: durations.
        now: returns the time in seconds since the epoch.
    """

    def __init__(
        self,
        batch: BatchRecord,
        store: Store,
        call: RouteCall,
        admission: BatchAdmission,
        concurrency: ConcurrencyLimits,
        limits: InputLimits,
        worker: str,
        timing: JobTiming | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._batch = batch
        self._store = store
        self._call = call
        self._admission = admission
        self._concurrency = concurrency
        self._limits = limits
        self._worker = worker
        self._timing = timing or JobTiming()
        self._now = now
        self._stopped = asyncio.Event()
        self._journal = _Journal(store, batch.id, worker)

    def stop(self) -> None:
        """Start no more lines and abort running ones: the batch was cancelled or has expired."""
        self._stopped.set()

    async def run(self) -> None:
        """Run the batch until it ends, or until another server holds what is left of it.

        Raises ``EngineError`` or ``StorageError`` if it cannot continue for now.
        """
        renewing = asyncio.create_task(self._renew_claims())
        try:
            await self._advance()
        except ContentMissing:
            text = "the content of the input file is missing from the server's file storage"
            await self._fail("input_file_missing", text)
        except (EngineError, StorageError, asyncio.CancelledError):
            raise  # the next attempt, or the next server, continues from here
        except StorageFull as error:
            await self._fail("storage_full", str(error))
        except Exception:
            logger.exception("batch %s failed", self._batch.id)
            await self._fail("internal_error", "the batch failed; the server's log has the details")
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            with contextlib.suppress(StorageError):
                await self._store.release(self._batch.id, self._worker)

    async def _advance(self) -> None:
        if self._batch.status == "validating" and not self._expired:
            if not await self._claim_batch():
                return
            await self._validate()
            await self._store.release(self._batch.id, self._worker)  # other servers may have lines, too
        if self._batch.status == "in_progress" and not self._expired:
            await self._run_lines()
        ends = self._expired or self._batch.status in ("finalizing", "cancelling")
        if not ends or not await self._claim_batch():
            return
        await self._reload()
        if self._expired:
            await self._finish("expired")
        if self._batch.status == "finalizing":
            await self._finish("completed")
        if self._batch.status == "cancelling":  # also if that happened while another end was being written
            await self._finish("cancelled")

    @property
    def _expired(self) -> bool:
        return self._now() >= self._batch.expires_at and self._batch.status in ("validating", "in_progress")

    async def _claim_batch(self) -> bool:
        """Return True if no other server works on the batch as a whole; then no result is added any more."""
        return WHOLE_BATCH in await self._store.claim(self._batch.id, [WHOLE_BATCH], self._worker, self._timing.claim)

    async def _renew_claims(self) -> None:
        while True:
            await asyncio.sleep(self._timing.claim / 3)
            try:
                await self._store.renew(self._batch.id, self._worker, self._timing.claim)
            except StorageError as error:
                logger.warning("the claims of batch %s could not be renewed: %s", self._batch.id, error)

    async def _validate(self) -> None:
        if not await self._unless_stopped(self._check()):
            await self._reload()

    async def _check(self) -> None:
        async with self._concurrency.checks:
            content = self._store.read_content(self._batch.input_file_id)
            endpoint, limits = self._batch.endpoint, self._limits
            check = await check_file(content, endpoint, max_lines=limits.lines, max_bytes=limits.line_bytes)
        to: BatchStatus = "failed" if check.errors else "in_progress"
        await self._move(to, total=check.total, errors=check.errors)

    async def _run_lines(self) -> None:
        """Run the lines without a result, until all have one or the job is stopped."""
        try:
            complete = await self._unless_stopped(self._run_remaining())
        finally:
            await self._journal.flush()
        if complete:
            await self._move("finalizing")
        else:
            await self._reload()

    async def _run_remaining(self) -> None:
        async with self._concurrency.lines:
            remaining = await self._run_unclaimed(None)
            while remaining:
                remaining = await self._wait_for_others(remaining)
                if remaining:
                    remaining = await self._run_unclaimed(remaining)

    async def _run_unclaimed(self, numbers: set[int] | None) -> set[int]:
        """Run those lines that no other server has claimed; return those that still have no result.

        ``numbers`` are the lines to run; ``None``: all that have no result.
        """
        done = await self._store.done_lines(self._batch.id)
        remaining = set[int]()
        try:
            async with aclosing(self._input()) as groups, asyncio.TaskGroup() as running:
                async for group in groups:
                    lines = [
                        line
                        for line in group
                        if line.number not in done and (numbers is None or line.number in numbers)
                    ]
                    remaining.update(line.number for line in lines)
                    for start in range(0, len(lines), CLAIMED_TOGETHER):
                        await self._start_unclaimed(lines[start : start + CLAIMED_TOGETHER], running)
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return remaining - await self._store.done_lines(self._batch.id) if remaining else remaining

    async def _start_unclaimed(self, lines: Sequence[Line], running: asyncio.TaskGroup) -> None:
        numbers = [line.number for line in lines]
        claimed = await self._store.claim(self._batch.id, numbers, self._worker, self._timing.claim)
        for line in lines:
            if line.number in claimed:
                admitted = AdmittedLine(self._admission, line.width)
                await admitted.enter()
                self._start(line, admitted, running)

    async def _wait_for_others(self, remaining: set[int]) -> set[int]:
        """Wait until one of the lines can be claimed, or all have a result; return those that have none.

        Also ends when the batch is not in progress any more.
        """
        id = self._batch.id
        while True:
            if (await self._store.batch(id)).status != "in_progress":
                return set()
            remaining -= await self._store.done_lines(id)
            if not remaining or await self._store.claim(id, sorted(remaining), self._worker, self._timing.claim):
                return remaining
            await asyncio.sleep(self._timing.others_pause)

    def _input(self) -> AsyncGenerator[list[Line], None]:
        content = self._store.read_content(self._batch.input_file_id)
        return read_lines(content, self._batch.endpoint, self._limits.line_bytes)

    def _start(self, line: Line, admitted: AdmittedLine, running: asyncio.TaskGroup) -> None:
        """Run an admitted line. ``leave`` is called even if the task is cancelled before its first step."""
        work = self._line(line, admitted)
        try:
            task = running.create_task(work)
        except RuntimeError:  # the group is ending because another line failed
            work.close()
            admitted.leave()
            raise
        task.add_done_callback(lambda _: admitted.leave())

    async def _line(self, line: Line, admitted: AdmittedLine) -> None:
        answer = await self._answer(line, admitted)
        await self._journal.add(line_result(line, answer))

    async def _answer(self, line: Line, admitted: AdmittedLine) -> RouteAnswer:
        """Run the line until it has an answer; between two attempts other lines, of other batches too, may run."""
        while True:
            try:
                return await self._call(self._batch.endpoint, line.body)
            except EngineBusy:
                admitted.leave()
                await asyncio.sleep(self._timing.busy_pause)
                await admitted.enter()

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await ``work``; cancel it and return False once the job is stopped."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in (task, stopped):
                future.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
        if task.cancelled():
            return False
        task.result()
        return True

    async def _reload(self) -> None:
        """Load the batch again, since others may have changed it."""
        self._batch = await self._store.batch(self._batch.id)

    async def _move(self, to: BatchStatus, *, total: int | None = None, errors: Faults = ()) -> None:
        """Change the status unless others have changed it; load the batch either way."""
        self._batch = await self._store.move(self._batch.id, to, int(self._now()), total=total, errors=errors)

    async def _fail(self, code: str, message: str) -> None:
        """End the batch with an error, unless another server is ending it."""
        if await self._claim_batch():
            await self._finish("failed", [LineError(code, message, None).as_dict()])

    async def _finish(self, to: BatchStatus, errors: Faults = ()) -> None:
        """Write the result files and end the batch, unless its status leads to another end now."""
        batch, now = self._batch, int(self._now())
        expired = self._input() if to == "expired" and batch.status == "in_progress" else None
        results = ResultFiles(self._store, batch, now)
        output, error = await results.write_output(), await results.write_errors(expired)
        finished = await self._store.finish(
            batch.id, to, now, output=output, error=error, errors=errors, worker=self._worker
        )
        if finished is not None:
            self._batch = finished
        else:
            await results.discard()
            await self._reload()
        logger.info("batch %s: %s", batch.id, self._batch.status)


class _Journal:
    """Writes results in groups: those that arrive during a write make up the next group."""

    def __init__(self, store: Store, batch: str, worker: str) -> None:
        self._store = store
        self._id = batch
        self._worker = worker
        self._pending: list[LineResult] = []
        self._next: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def add(self, result: LineResult) -> None:
        """Write ``result``; return when it is stored and counted. Raises ``StorageFull``."""
        self._pending.append(result)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
        self._next.add_done_callback(_retrieve_exception)
        await asyncio.shield(self._next)  # a line that is cancelled now is done nevertheless

    async def flush(self) -> None:
        """Wait until all results are written."""
        if self._next is not None:
            await asyncio.wait((self._next,))
        async with self._turn:
            pass

    async def _write(self) -> None:
        async with self._turn:
            group, self._pending, self._next = self._pending, [], None
            await self._store.add_results(self._id, group, self._worker)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark the task's error as seen, since the lines that waited for it may be cancelled."""
    if not task.cancelled():
        task.exception()
