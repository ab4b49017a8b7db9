"""What is remembered of finished responses: bounded, in memory, the least recently used forgotten first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_plug_api.errors import json_bytes
from sglang_plug_api.protocol.items import is_image

from .images import without_images


@dataclass(frozen=True, slots=True)
class Stored:
    """A finished response: its object, and the conversation up to and with its answer, without instructions."""

    answer: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]] = ()
    """Of the request itself, as they are listed."""

    @property
    def size(self) -> int:
        """Bytes it counts for: those of its JSON, and of its images as they were sent."""
        images = [part for message in self.messages for part in _images(message)]
        sent = sum(len(part["image_url"] or "") for part in images)
        return sent + len(json_bytes([self.answer, [without_images(message) for message in self.messages], self.items]))


def _images(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    content = message["content"]
    return filter(is_image, content if isinstance(content, list) else ())


class ResponseStore:
    """Responses by id.

    Args:
        most: responses that are kept; 0 keeps none.
        most_bytes: bytes that they may count for together.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._entries: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def enabled(self) -> bool:
        """False if nothing is ever kept."""
        return self._most > 0

    def get(self, id: str) -> Stored | None:
        """The response, which counts as used."""
        if id not in self._entries:
            return None
        self._entries.move_to_end(id)
        return self._entries[id][0]

    def put(self, id: str, response: Stored) -> None:
        """Keep ``response``, and forget others until there is room for it; one that is too large is not kept."""
        size = response.size
        if size > self._most_bytes:
            return
        self.delete(id)
        self._entries[id] = (response, size)
        self.size += size
        while len(self._entries) > self._most or self.size > self._most_bytes:
            self.delete(next(iter(self._entries)))

    def delete(self, id: str) -> bool:
        """False if there is no such response."""
        found = self._entries.pop(id, None)
        if found is None:
            return False
        self.size -= found[1]
        return True
