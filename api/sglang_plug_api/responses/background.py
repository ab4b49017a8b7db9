"""Responses that are generated apart from the request for them, and the events that they leave to be read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from fastapi import FastAPI

from sglang_plug import ResponseEvent, StorageError

logger = logging.getLogger(__name__)


ATTEMPTS = 10
ATTEMPT_PAUSE = 1.0
"""Seconds between two attempts to store something, enough of them for a restart of a database."""
END_SECONDS = 2.0
"""Seconds in which tasks end by themselves when the application ends."""


class EventLog:
    """The events of one response so far. They can be read at any time and by several clients; numbers begin with 0."""

    def __init__(self) -> None:
        self._events: list[ResponseEvent] = []
        self._ended = False
        self._changed = asyncio.Event()
        self.size = 0
        """Size of the events in bytes of JSON, which the store adds."""

    def add(self, event: ResponseEvent) -> None:
        """Append an event and wake the readers."""
        self._events.append(event)
        self._wake()

    def end(self) -> None:
        """Let the readers end after the last event."""
        self._ended = True
        self._wake()

    async def read(self, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events with numbers above ``after``, waiting for those to come until the log has ended."""
        position = after + 1
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._ended:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def stored_if_possible(
    store: Callable[[], Awaitable[None]], id: str, *, attempts: int = ATTEMPTS, pause: float = ATTEMPT_PAUSE
) -> None:
    """Store something of the response ``id`` that no request waits for, in several attempts; log if it is lost.

    ``pause``: seconds between two attempts.
    """
    problem: StorageError | None = None
    for attempt in range(attempts):
        if attempt:
            await asyncio.sleep(pause)
        try:
            await store()
            return
        except StorageError as error:
            problem = error
    logger.error("the response %s could not be stored: %s", id, problem)


class EventWriter:
    """Appends the events of a response to a store, in groups: those that come during a write make up the next one.

    Args:
        append: appends events to a response of the store, which may fail for a while.
        id: the response's id.
        pause: seconds between two attempts to write a group.
    """

    def __init__(
        self,
        append: Callable[[str, Sequence[ResponseEvent]], Awaitable[None]],
        id: str,
        *,
        pause: float = ATTEMPT_PAUSE,
    ) -> None:
        self._append = append
        self._id = id
        self._pause = pause
        self._pending: list[ResponseEvent] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, event: ResponseEvent) -> None:
        """Append an event, soon."""
        self._pending.append(event)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def flush(self) -> None:
        """Wait until all events are written, or the store has failed."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        try:
            while self._pending:
                group, self._pending = self._pending, []
                write = partial(self._append, self._id, group)
                await stored_if_possible(write, self._id, pause=self._pause)
        finally:
            self._writing = None


class BackgroundTasks:
    """The tasks of a server that no request waits for."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[None]]()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` on behalf of the current caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Wait for the tasks that are left when the application ends, then cancel them."""
        try:
            yield
        finally:
            tasks = list(self._tasks)
            if tasks:
                await asyncio.wait(tasks, timeout=END_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
