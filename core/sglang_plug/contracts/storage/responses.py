"""The contract of stores of responses, which several API processes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

from .records import ResponseRecord

ResponseEvent = Mapping[str, Any]
"""An event of a response as JSON, with its ``type`` and its ``sequence_number``."""


class ResponseStore(ABC):
    """Responses by id, and the events of those that are generated in the background.

    The store keeps the limits of its ``StoreContext`` and removes the responses that were least recently used. All
    methods belong to one event loop and may raise ``StorageBroken`` and ``StorageUnavailable``. Methods with an
    ``owner`` ignore entries of other owners; ``None`` stands for all owners.

    A response that is ``running`` belongs to the server that put it there. This server says every few seconds that it
    still generates it (``renew``); a response whose time is over counts as abandoned.
    """

    @abstractmethod
    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        """Store or replace a response, unless it is too large; its events stay. A running one is kept for ``seconds``.

        A response that was deleted while it was running is not stored again.
        """

    @abstractmethod
    async def get(self, id: str, owner: str | None = None) -> ResponseRecord | None:
        """Return a response, and count that as a use of it."""

    @abstractmethod
    async def is_abandoned(self, id: str) -> bool:
        """Report whether a response is running, but no server has renewed it in time."""

    @abstractmethod
    async def delete(self, id: str, owner: str | None = None) -> bool:
        """Delete a response and its events; return False if there is none. A running one has to stop (``renew``)."""

    @abstractmethod
    async def cancel(self, id: str, owner: str | None = None) -> bool:
        """Let the server that generates a response stop (``renew``); return False if it is not running."""

    @abstractmethod
    async def renew(self, ids: Iterable[str], seconds: float) -> set[str]:
        """Keep running responses for ``seconds`` from now on; return those that have to stop."""

    @abstractmethod
    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        """Append events to a response."""

    @abstractmethod
    def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events with numbers above ``after``, and wait for more until the response is not running.

        Also ends when the response is deleted or abandoned.
        """
