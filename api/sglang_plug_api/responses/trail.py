"""Which tokens made a text: parsers hold text back, and leave out the marks of what is not the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]
"""Log-probabilities of one token, with its ``bytes``."""


class Trail:
    """Tokens in their order, until the text that they made has been seen."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """More tokens."""
        self._entries += entries

    def take(self, text: str) -> list[Entry]:
        """The tokens that made ``text``; those before it made none, and are forgotten.

        Where the text is not what the tokens say, as special tokens in its middle were left out, they are all of them.
        """
        wanted = text.encode("utf-8", "replace")
        start = b"".join(bytes(one["bytes"]) for one in self._entries).find(wanted)
        if start < 0:
            return self.rest()
        end, place = start + len(wanted), 0
        found: list[Entry] = []
        for index, one in enumerate(self._entries):
            if place >= end:
                del self._entries[:index]
                return found
            place += len(one["bytes"])
            if place > start:
                found.append(one)
        self._entries.clear()
        return found

    def rest(self) -> list[Entry]:
        """All that is left."""
        found, self._entries = self._entries, []
        return found
