"""Responses that are kept for later requests, in the memory of this server or in a store that servers share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from sglang_plug import ResponseEvent, ResponseRecord, ResponseStore, StorageError
from sglang_plug_api.answers.errors import SHOWN, ApiError
from sglang_plug_api.answers.large_json import plain_in_parts
from sglang_plug_api.http.streaming import NamedEvent
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.service.callers import current_caller
from sglang_plug_api.stores.storage import Storage

from .active_response import ActiveResponse
from .background import ATTEMPTS, EventWriter, stored_if_possible
from .store import MemoryResponses

RENEW_INTERVAL = 1.0
"""Seconds after which a server notices that another one cancelled a response."""
KEPT_SECONDS = 15.0
"""Seconds after which a response counts as failed because its server has died."""
POLL = 0.05
"""Seconds between two looks at a response that another server is about to end."""
ABANDONED = {"code": "server_error", "message": "the server that generated the response has ended"}


class StoredResponses:
    """The responses that the current caller may use.

    Args:
        storage: its store may have a store of responses; if not, they are kept in memory.
        config: has their limits.
    """

    def __init__(self, storage: Storage, config: ServerConfig) -> None:
        self._storage = storage
        shared = storage.store.responses
        self.is_shared = shared is not None
        """True if other servers use the store, too, so that its responses outlive this server."""
        self._store: ResponseStore = (
            MemoryResponses(config.max_stored_responses, config.max_stored_response_bytes) if shared is None else shared
        )
        self._owned = set[str]()  # those in the background that this server generates or is storing
        self.enabled = config.max_stored_responses > 0
        """False if no response is ever stored."""

    async def find(self, id: str) -> ResponseRecord | None:
        """Return a response, or ``None`` if there is none; one whose server has died has failed."""
        record = await self._storage.client_call(self._store.get(id, current_caller().scope))
        if record is None or not record.running or not await self._storage.client_call(self._is_abandoned(id)):
            return record
        failed = replace(record, answer={**record.answer, "status": "failed", "error": ABANDONED}, running=False)
        await self._storage.client_call(self._store.put(failed))
        return failed

    async def get(self, id: str) -> ResponseRecord:
        """Return a response. Raises ``ApiError`` if there is none."""
        record = await self.find(id)
        if record is None:
            raise unknown_response(id)
        return record

    async def begin(self, response: ActiveResponse) -> None:
        """Store a response that begins to run in the background. Raises ``ApiError``."""
        self._owned.add(response.id)
        try:
            await self._storage.client_call(self._put(_record(response, running=True)))
        except BaseException:
            self._owned.discard(response.id)
            raise

    async def update(self, response: ActiveResponse) -> None:
        """Store a response as it is now, running or not; a failure of the store is logged."""
        running = response.background and not response.closed
        record = _record(response, running=running)
        attempts = ATTEMPTS if response.background and not running else 1
        try:
            await stored_if_possible(lambda: self._storage.call(self._put(record)), response.id, attempts=attempts)
        finally:
            if not running:
                self._owned.discard(response.id)

    async def delete(self, id: str) -> bool:
        """Delete a response, and let its server stop if it is running. Returns False if there is none."""
        return await self._storage.client_call(self._store.delete(id, current_caller().scope))

    async def cancel(self, id: str) -> ResponseRecord:
        """Let the server that generates a response stop; return the response once it has. Raises ``ApiError``."""
        await self._storage.client_call(self._store.cancel(id, current_caller().scope))
        while (record := await self.get(id)).running:
            await asyncio.sleep(POLL)
        return record

    async def renew(self) -> set[str]:
        """Tell the store which responses this server still generates; return those that have to stop."""
        if not self._owned:
            return set()
        try:
            return await self._storage.call(self._store.renew(tuple(self._owned), KEPT_SECONDS))
        except StorageError:
            return set()  # it is in the log

    def writer(self, id: str) -> EventWriter:
        """Return what appends events to a response."""
        return EventWriter(self._append_events, id)

    async def events(self, id: str, after: int) -> AsyncGenerator[NamedEvent, None]:
        """Yield the events of a response with numbers above ``after`` until it has ended.

        If its server has died, the last one says so.
        """
        number = after
        try:
            while True:
                async for event in self._store.read_events(id, number):
                    number = event["sequence_number"]
                    yield NamedEvent(event["type"], event)
                if id not in self._owned or not await self._store.is_abandoned(id):
                    break
                await self.renew()  # this server was too busy to renew it in time
            if await self._is_abandoned(id) and (record := await self.find(id)) is not None:
                failed = {"type": "response.failed", "sequence_number": number + 1, "response": record.answer}
                yield NamedEvent("response.failed", failed)
        except StorageError as error:
            self._storage.report(error)
            raise ApiError("the events of the response cannot be read now; ask for the rest later", 503) from error

    async def _is_abandoned(self, id: str) -> bool:
        """Report whether the server that generates a response has died: another one that did not renew it in time."""
        return id not in self._owned and await self._store.is_abandoned(id)

    async def _put(self, record: ResponseRecord) -> None:
        if self.is_shared:  # its methods get nothing but JSON; memory keeps large lists as they are
            record = replace(record, answer=await plain_in_parts(record.answer))
        await self._store.put(record, KEPT_SECONDS)

    async def _append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        if self.is_shared:
            events = [await plain_in_parts(event) for event in events]
        await self._store.append_events(id, events)


def unknown_response(id: str) -> ApiError:
    """Return the refusal of a request for a response that is not there."""
    return ApiError(f"Response with id {id[:SHOWN]!r} not found.", 404, param="response_id", code="response_not_found")


def _record(response: ActiveResponse, *, running: bool) -> ResponseRecord:
    return ResponseRecord(
        id=response.id,
        answer=response.as_dict(),
        messages=() if running else tuple(response.conversation),
        items=tuple(response.items),
        owner=response.job.caller.owner,
        streams=response.streams and response.background,
        running=running,
    )
