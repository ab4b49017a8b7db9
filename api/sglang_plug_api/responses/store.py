"""Store of finished responses: in memory, bounded, evicting the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug_api.http.callers import current_caller
from sglang_plug_api.http.errors import json_bytes
from sglang_plug_api.protocol.items import is_image

from .background import EventLog
from .message_images import without_images


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A finished response: its object, and the conversation including it, without instructions."""

    answer: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]] = ()
    """Input items of the request itself, in the form in which they are listed."""
    owner: str = ""
    """Id of the API key of its request."""
    events: EventLog | None = None
    """Its events, if it was streamed in the background."""

    @property
    def size(self) -> int:
        """Size in bytes: that of its JSON, of its events and of its images as they were sent."""
        images = [part for message in self.messages for part in _images(message)]
        sent = sum(len(part["image_url"] or "") for part in images)
        sent += self.events.size if self.events is not None else 0
        return sent + len(json_bytes([self.answer, [without_images(message) for message in self.messages], self.items]))


def _images(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = message["content"]
    return filter(is_image, content if isinstance(content, list) else ())


class ResponseStore:
    """Finished responses by id.

    Args:
        limit: responses to keep; 0 keeps none.
        limit_bytes: largest total size of the responses.
    """

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._limit, self._limit_bytes = limit, limit_bytes
        self._entries: OrderedDict[str, tuple[StoredResponse, int]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def enabled(self) -> bool:
        """False if no response is ever stored."""
        return self._limit > 0

    def get(self, id: str) -> StoredResponse | None:
        """Return the response and mark it as used; ``None`` if the current caller has no such response."""
        if not self._has(id):
            return None
        self._entries.move_to_end(id)
        return self._entries[id][0]

    def put(self, id: str, response: StoredResponse) -> None:
        """Store ``response``, evicting others until there is room; a response that is too large is not stored."""
        size = response.size
        if size > self._limit_bytes:
            return
        self._forget(id)
        self._entries[id] = (response, size)
        self.size += size
        while len(self._entries) > self._limit or self.size > self._limit_bytes:
            self._forget(next(iter(self._entries)))

    def delete(self, id: str) -> bool:
        """Delete a response; return False if the current caller has no such response."""
        known = self._has(id)
        if known:
            self._forget(id)
        return known

    def _has(self, id: str) -> bool:
        return id in self._entries and current_caller().may_use(self._entries[id][0].owner)

    def _forget(self, id: str) -> None:
        _, size = self._entries.pop(id, (None, 0))
        self.size -= size
