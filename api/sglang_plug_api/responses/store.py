"""Store of responses in memory: bounded, evicting the least recently used."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug import ResponseEvent, ResponseRecord, ResponseStore
from sglang_plug_api.answers.large_json import large_json_bytes
from sglang_plug_api.protocol.items import is_image

from .background import EventLog
from .message_images import without_images


async def response_size(response: ResponseRecord) -> int:
    """Return the size of a response in bytes: that of its JSON, and of its images as they were sent."""
    images = [part for message in response.messages for part in _images(message)]
    sent = sum(len(part["image_url"] or "") for part in images)
    messages = [without_images(message) for message in response.messages]
    return sent + len(await large_json_bytes([response.answer, messages, response.items]))


def _images(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = message["content"]
    return filter(is_image, content if isinstance(content, list) else ())


@dataclass(slots=True)
class _Running:
    """A response that is running. It does not count against the limits."""

    response: ResponseRecord
    events: EventLog
    until: float
    """Time by which it must be renewed, by the monotonic clock."""
    must_stop: bool = False
    is_deleted: bool = False


@dataclass(slots=True)
class _Ended:
    """A response that has ended."""

    response: ResponseRecord
    events: EventLog | None
    """``None`` unless its events were asked for."""
    size: int = 0
    """Size of the response and its events in bytes."""


class MemoryResponses(ResponseStore):
    """Responses of this process by id.

    Args:
        limit: ended responses to keep; 0 keeps none.
        limit_bytes: largest total size of the ended responses with their events.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit, self._limit_bytes = limit, limit_bytes
        self._running: dict[str, _Running] = {}
        self._measured: dict[str, _Ended] = {}  # those whose size is being found out
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._ended)

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        """Store a response, evicting others until there is room; one that is too large is not stored."""
        running = self._running.get(response.id)
        if response.running:
            if running is None:
                running = self._running[response.id] = _Running(response, EventLog(), 0.0)
            running.response, running.until = response, time.monotonic() + seconds
            return
        events: EventLog | None = None
        if running is not None:
            del self._running[response.id]
            running.events.end()
            events = running.events if response.streams else None
            if running.is_deleted:
                return
        await self._keep(response.id, _Ended(response, events))

    async def _keep(self, id: str, ended: _Ended) -> None:
        self._measured[id] = ended
        try:
            ended.size = await response_size(ended.response) + (ended.events.size if ended.events is not None else 0)
        finally:
            was_deleted = self._measured.pop(id, None) is None
        if was_deleted or ended.size > self._limit_bytes:
            return
        self._forget(id)
        self._ended[id] = ended
        self.size += ended.size
        while len(self._ended) > self._limit or self.size > self._limit_bytes:
            self._forget(next(iter(self._ended)))

    async def get(self, id: str, owner: str | None = None) -> ResponseRecord | None:
        """Return a response and mark it as used."""
        response = self._response(id, owner)
        if id in self._ended and response is not None:
            self._ended.move_to_end(id)
        return response

    async def is_abandoned(self, id: str) -> bool:
        """Report whether a response was not renewed in time."""
        running = self._running.get(id)
        return running is not None and time.monotonic() >= running.until

    async def delete(self, id: str, owner: str | None = None) -> bool:
        """Delete a response; readers of a running one get the events until it has stopped."""
        if self._response(id, owner) is None:
            return False
        if (running := self._running.get(id)) is not None:
            running.must_stop = running.is_deleted = True
        else:
            self._measured.pop(id, None)
            self._forget(id)
        return True

    async def cancel(self, id: str, owner: str | None = None) -> bool:
        """Let a running response stop."""
        running = self._running.get(id)
        if running is None or self._response(id, owner) is None:
            return False
        running.must_stop = True
        return True

    async def renew(self, ids: Iterable[str], seconds: float) -> set[str]:
        """Keep running responses; return those that have to stop."""
        stop = set[str]()
        for id in ids:
            if (running := self._running.get(id)) is not None:
                running.until = time.monotonic() + seconds
                if seconds <= 0:  # abandoned at once: nothing else would wake the readers
                    running.events.end()
                if running.must_stop:
                    stop.add(id)
        return stop

    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        """Append events to a running response."""
        if (running := self._running.get(id)) is not None:
            for event in events:
                running.events.add(event)
                running.events.size += len(await large_json_bytes(event))

    async def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events with numbers above ``after``, and wait for more while the response is running."""
        entry = self._entry(id)
        log = None if entry is None else entry.events
        if log is not None:
            async for event in log.read(after):
                yield event

    def _response(self, id: str, owner: str | None) -> ResponseRecord | None:
        entry = self._entry(id)
        if entry is None or (isinstance(entry, _Running) and entry.is_deleted):
            return None
        return entry.response if owner in (None, entry.response.owner) else None

    def _entry(self, id: str) -> _Running | _Ended | None:
        return self._running.get(id) or self._measured.get(id) or self._ended.get(id)

    def _forget(self, id: str) -> None:
        if (ended := self._ended.pop(id, None)) is not None:
            self.size -= ended.size
