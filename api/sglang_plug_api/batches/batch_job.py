"""Execution of one batch, from whatever state it was left in to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sglang_plug import EngineError

from .admission import BatchAdmission
from .lines import Line, LineError, check_file, read_lines
from .outputs import expired_lines, line_result, write_results
from .records import BatchRecord, LineResult, Status
from .route_call import EngineBusy, RouteAnswer
from .storage import STORAGE_ERRORS, Storage
from .store import StorageFull

logger = logging.getLogger(__name__)

RouteCall = Callable[[str, bytes], Awaitable[RouteAnswer]]
"""Answers ``POST path`` with a body, see ``route_call.call_route``."""
Faults = Sequence[Mapping[str, Any]]
"""Entries of a batch's ``errors``."""
CHUNK = 64
"""Lines read from disk at a time."""
BUSY_PAUSE = 0.5
"""Seconds before a line is tried again after the engine's queue was full."""


class ConcurrencyLimits:
    """Limits shared by all jobs: files that are checked together, and batches whose lines run together."""

    def __init__(self, *, checks: int, lines: int) -> None:
        self.checks = asyncio.Semaphore(checks)
        self.lines = asyncio.Semaphore(lines)


class BatchJob:
    """Runs a batch. Every result is on disk before it is counted, so a job can be stopped at any moment.

    Args:
        batch: the batch's record in the table.
        storage: storage of the batch and its files.
        call: runs a line.
        admission: decides when a line starts.
        limits: limits shared by all batches.
        max_line_bytes: longest line.
    """

    def __init__(
        self,
        batch: BatchRecord,
        storage: Storage,
        call: RouteCall,
        admission: BatchAdmission,
        limits: ConcurrencyLimits,
        max_line_bytes: int,
    ) -> None:
        self._batch, self._storage, self._call = batch, storage, call
        self._admission, self._limits, self._max_line_bytes = admission, limits, max_line_bytes
        self._input = storage.path(batch.input_file_id)
        self._stopped = asyncio.Event()
        self._journal = _Journal(storage, batch.id)

    def stop(self) -> None:
        """Start no more lines and abort running ones: the batch was cancelled or has expired."""
        self._stopped.set()

    async def run(self) -> None:
        """Run the batch to its end.

        Raises ``EngineError``, or one of ``STORAGE_ERRORS``, if it cannot continue for now.
        """
        try:
            await self._advance()
        except FileNotFoundError:
            text = "the content of the input file is missing from the server's file storage"
            await self._finish("failed", [_fault("input_file_missing", text)])
        except (EngineError, *STORAGE_ERRORS, asyncio.CancelledError):
            raise  # the next attempt, or the next server, continues from here
        except StorageFull as error:
            await self._finish("failed", [_fault("storage_full", str(error))])
        except Exception:
            logger.exception("batch %s failed", self._batch.id)
            await self._finish(
                "failed", [_fault("internal_error", "the batch failed; the server's log has the details")]
            )

    async def _advance(self) -> None:
        if self._batch.status == "validating" and not self._expired:
            await self._validate()
        if self._batch.status == "in_progress" and not self._expired:
            await self._run_lines()
        if self._expired:
            await self._finish("expired")
        if self._batch.status == "finalizing":
            await self._finish("completed")
        if self._batch.status == "cancelling":  # also if that happened while another end was being written
            await self._finish("cancelled")

    @property
    def _expired(self) -> bool:
        return time.time() >= self._batch.expires_at and self._batch.status in ("validating", "in_progress")

    async def _validate(self) -> None:
        if not await self._unless_stopped(self._check()):
            await self._reload()

    async def _check(self) -> None:
        config, endpoint = self._storage.config, self._batch.endpoint
        limits = {"max_lines": config.max_batch_lines, "max_bytes": self._max_line_bytes}
        async with self._limits.checks:
            check = await asyncio.to_thread(check_file, self._input, endpoint, **limits)
        to: Status = "failed" if check.errors else "in_progress"
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
        id = self._batch.id
        async with self._limits.lines:
            done = await self._storage.call(lambda store: store.done_lines(id))
            lines = read_lines(self._input, self._batch.endpoint, self._max_line_bytes)
            try:
                async with asyncio.TaskGroup() as group:
                    while chunk := await asyncio.to_thread(lambda: list(islice(lines, CHUNK))):
                        for line in chunk:
                            if line.number not in done:
                                await self._admission.enter(line.width)
                                self._start(line, group)
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None

    def _start(self, line: Line, group: asyncio.TaskGroup) -> None:
        """Run an admitted line. ``leave`` is called even if the task is cancelled before its first step."""
        work = self._line(line)
        try:
            task = group.create_task(work)
        except RuntimeError:  # the group is ending because another line failed
            work.close()
            self._admission.leave(line.width)
            raise
        task.add_done_callback(lambda _: self._admission.leave(line.width))

    async def _line(self, line: Line) -> None:
        answer = await self._answer(line)
        await self._journal.add(line_result(line, answer))

    async def _answer(self, line: Line) -> RouteAnswer:
        while True:
            try:
                return await self._call(self._batch.endpoint, line.body)
            except EngineBusy:
                await asyncio.sleep(BUSY_PAUSE)

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
        self._batch = await self._storage.call(lambda store: store.batch(self._batch.id))

    async def _move(self, to: Status, *, total: int | None = None, errors: Faults = ()) -> None:
        """Change the status unless others have changed it; load the batch either way."""
        id, now = self._batch.id, int(time.time())
        self._batch = await self._storage.call(lambda store: store.move(id, to, now, total=total, errors=errors))

    async def _finish(self, to: Status, errors: Faults = ()) -> None:
        """Write the result files and end the batch, unless its status leads to another end now."""
        batch, now = self._batch, int(time.time())
        extra_lines: Iterator[bytes] = iter(())
        if to == "expired" and batch.status == "in_progress":
            done = await self._storage.call(lambda store: store.done_lines(batch.id))
            extra_lines = expired_lines(self._input, batch.endpoint, self._max_line_bytes, done)
        files = [
            await write_results(self._storage, batch, True, now, iter(())),
            await write_results(self._storage, batch, False, now, extra_lines),
        ]
        finished = await self._storage.call(
            lambda store: store.finish(batch.id, to, now, output=files[0], error=files[1], errors=errors)
        )
        if finished is not None:
            self._batch = finished
        else:
            for file in filter(None, files):
                self._storage.path(file.id).unlink(missing_ok=True)
            await self._reload()
        logger.info("batch %s: %s", batch.id, self._batch.status)


class _Journal:
    """Writes results in groups: those that arrive during a write make up the next group."""

    def __init__(self, storage: Storage, batch: str) -> None:
        self._storage, self._id = storage, batch
        self._pending: list[LineResult] = []
        self._next: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def add(self, result: LineResult) -> None:
        """Write ``result``; return when it is on disk and counted. Raises ``StorageFull``."""
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
            await self._storage.call(lambda store: store.add_results(self._id, group))


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark the task's error as seen, since the lines that waited for it may be cancelled."""
    if not task.cancelled():
        task.exception()


def _fault(code: str, message: str) -> dict[str, Any]:
    return LineError(code, message, None).as_dict()
