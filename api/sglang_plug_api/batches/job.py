"""One batch, from whatever state it was left in to its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sglang_plug.engine.client import EngineError

from .admission import Admission
from .call import Answer, Busy
from .lines import Line, LineError, check_file, read_lines
from .models import BatchRecord, Result, Status
from .outputs import expired_lines, result_of, write_results
from .storage import Storage
from .store import StorageFull

logger = logging.getLogger(__name__)

Call = Callable[[str, bytes], Awaitable[Answer]]
"""Answers ``POST path`` with a body, see ``call.call``."""
Faults = Sequence[Mapping[str, Any]]
"""Entries of a batch's ``errors``."""
CHUNK = 64
"""Lines read from disk at a time."""
BUSY_PAUSE = 0.5
"""Seconds before a line that the engine had no room for is tried again."""


class Turns:
    """Shared by all jobs: how many files are checked together, and how many batches run lines together."""

    def __init__(self, *, checks: int, lines: int) -> None:
        self.checks = asyncio.Semaphore(checks)
        self.lines = asyncio.Semaphore(lines)


class Job:
    """Runs a batch. Every result is on disk before it is counted, so a job can be left at any moment.

    Args:
        batch: as found in the table.
        storage: where it and its files are.
        call: runs a line.
        admission: decides when.
        turns: bounds what batches do at the same time.
        max_line_bytes: longest line.
    """

    def __init__(
        self,
        batch: BatchRecord,
        storage: Storage,
        call: Call,
        admission: Admission,
        turns: Turns,
        max_line_bytes: int,
    ) -> None:
        self._batch, self._storage, self._call = batch, storage, call
        self._admission, self._turns, self._max_line_bytes = admission, turns, max_line_bytes
        self._input = storage.path(batch.input_file_id)
        self._stopped = asyncio.Event()
        self._journal = _Journal(storage, batch.id)

    def stop(self) -> None:
        """Start no more lines and abort those that run: the batch was cancelled or has expired."""
        self._stopped.set()

    async def run(self) -> None:
        """Returns when the batch is over. Raises ``EngineError`` if it cannot go on for now."""
        try:
            await self._advance()
        except (EngineError, asyncio.CancelledError):
            raise  # the next server goes on from here
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
        if self._batch.status == "cancelling":  # also if that happened while another ending was being written
            await self._finish("cancelled")

    @property
    def _expired(self) -> bool:
        return time.time() >= self._batch.expires_at and self._batch.status in ("validating", "in_progress")

    async def _validate(self) -> None:
        if not await self._unless_stopped(self._check()):
            await self._look()

    async def _check(self) -> None:
        config, endpoint = self._storage.config, self._batch.endpoint
        limits = {"max_lines": config.max_batch_lines, "max_bytes": self._max_line_bytes}
        async with self._turns.checks:
            check = await asyncio.to_thread(check_file, self._input, endpoint, **limits)
        to: Status = "failed" if check.errors else "in_progress"
        await self._move(to, total=check.total, errors=check.errors)

    async def _run_lines(self) -> None:
        """Run what has no result yet, until that is all or the job is stopped."""
        try:
            complete = await self._unless_stopped(self._run_rest())
        finally:
            await self._journal.settle()
        if complete:
            await self._move("finalizing")
        else:
            await self._look()

    async def _run_rest(self) -> None:
        id = self._batch.id
        async with self._turns.lines:
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
        """Run an admitted line. Its place is given back even if it is cancelled before its first step."""
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
        await self._journal.keep(result_of(line, answer))

    async def _answer(self, line: Line) -> Answer:
        while True:
            try:
                return await self._call(self._batch.endpoint, line.body)
            except Busy:
                await asyncio.sleep(BUSY_PAUSE)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Await ``work``; cancels it and returns false once the job is stopped."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (task, stopped):
                one.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)
        if task.cancelled():
            return False
        task.result()
        return True

    async def _look(self) -> None:
        """Learn what others have made of the batch."""
        self._batch = await self._storage.call(lambda store: store.batch(self._batch.id))

    async def _move(self, to: Status, *, total: int | None = None, errors: Faults = ()) -> None:
        """Change the status, unless somebody else has; either way know what it is now."""
        id, now = self._batch.id, int(time.time())
        self._batch = await self._storage.call(lambda store: store.move(id, to, now, total=total, errors=errors))

    async def _finish(self, to: Status, errors: Faults = ()) -> None:
        """Write the files and end the batch, unless it has become one that ends otherwise."""
        batch, now = self._batch, int(time.time())
        also: Iterator[bytes] = iter(())
        if to == "expired" and batch.status == "in_progress":
            done = await self._storage.call(lambda store: store.done_lines(batch.id))
            also = expired_lines(self._input, batch.endpoint, self._max_line_bytes, done)
        files = [
            await write_results(self._storage, batch, True, now, iter(())),
            await write_results(self._storage, batch, False, now, also),
        ]
        finished = await self._storage.call(
            lambda store: store.finish(batch.id, to, now, output=files[0], error=files[1], errors=errors)
        )
        if finished is not None:
            self._batch = finished
        else:
            for file in filter(None, files):
                self._storage.path(file.id).unlink(missing_ok=True)
            await self._look()
        logger.info("batch %s: %s", batch.id, self._batch.status)


class _Journal:
    """Writes results in groups: what comes in while one is on its way to the disk makes up the next."""

    def __init__(self, storage: Storage, batch: str) -> None:
        self._storage, self._id = storage, batch
        self._pending: list[Result] = []
        self._next: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def keep(self, result: Result) -> None:
        """Returns when ``result`` is on disk and counted. Raises ``StorageFull``."""
        self._pending.append(result)
        if self._next is None:
            self._next = asyncio.create_task(self._write())
            self._next.add_done_callback(_look_at)
        await asyncio.shield(self._next)  # a line that is cancelled now is done all the same

    async def settle(self) -> None:
        """Wait until nothing is on its way any more."""
        if self._next is not None:
            await asyncio.wait((self._next,))
        async with self._turn:
            pass

    async def _write(self) -> None:
        async with self._turn:
            group, self._pending, self._next = self._pending, [], None
            await self._storage.call(lambda store: store.add_results(self._id, group))


def _look_at(task: asyncio.Task[None]) -> None:
    """Whoever waited for it may be gone, so the error counts as seen."""
    if not task.cancelled():
        task.exception()


def _fault(code: str, message: str) -> dict[str, Any]:
    return LineError(code, message, None).shown()
