"""Responses that are generated apart from the request for them, and the events that they leave to be read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any

from fastapi import FastAPI

from sglang_plug_api.http.errors import json_bytes
from sglang_plug_api.http.streaming import NamedEvent


class EventLog:
    """The events of one response so far. They can be read at any time and by several clients; numbers begin with 0."""

    def __init__(self) -> None:
        self._events: list[NamedEvent] = []
        self._ended = False
        self._changed = asyncio.Event()
        self.size = 0
        """Size of the events in bytes of JSON."""

    def add(self, event: NamedEvent) -> None:
        """Append an event and wake the readers."""
        self._events.append(event)
        self.size += len(json_bytes(event.data))
        self._wake()

    def end(self) -> None:
        """Let the readers end after the last event."""
        self._ended = True
        self._wake()

    async def read(self, after: int = -1) -> AsyncGenerator[NamedEvent, None]:
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
        """Cancel the tasks that are left when the application ends."""
        try:
            yield
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
