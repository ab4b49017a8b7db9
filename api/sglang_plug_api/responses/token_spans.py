"""Assignment of tokens to texts: parsers delay text, and remove marks that are not part of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Entry = dict[str, Any]
"""Log-probabilities of one token, with its ``bytes``."""


class TokenSpans:
    """Tokens in order, kept until their text has been taken."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Add tokens."""
        self._entries += entries

    def take(self, text: str) -> list[Entry]:
        """Return the tokens of ``text``; tokens before it belong to no text and are dropped.

        All tokens are returned if they do not contain the text, which happens if special tokens in it were left out.
        """
        expected = text.encode("utf-8", "replace")
        start = b"".join(bytes(entry["bytes"]) for entry in self._entries).find(expected)
        if start < 0:
            return self.take_all()
        end, position = start + len(expected), 0
        taken: list[Entry] = []
        for index, entry in enumerate(self._entries):
            if position >= end:
                del self._entries[:index]
                return taken
            position += len(entry["bytes"])
            if position > start:
                taken.append(entry)
        self._entries.clear()
        return taken

    def take_all(self) -> list[Entry]:
        """Return and remove all remaining tokens."""
        entries, self._entries = self._entries, []
        return entries
