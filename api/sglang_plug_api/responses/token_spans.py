"""Assignment of tokens to texts: parsers delay text, and remove marks that are not part of the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class TokenSpans(Generic[Item]):
    """Tokens in order, kept until their text has been taken. Each is its bytes and an item that belongs to it."""

    def __init__(self) -> None:
        self._tokens: list[tuple[bytes, Item]] = []

    def add(self, tokens: Iterable[tuple[bytes, Item]]) -> None:
        """Add tokens."""
        self._tokens += tokens

    def take(self, text: str) -> list[Item]:
        """Return the items of the tokens of ``text``; tokens before it belong to no text and are dropped.

        All tokens are returned if they do not contain the text, which happens if special tokens in it were left out.
        """
        expected = text.encode("utf-8", "replace")
        start = b"".join(token for token, _ in self._tokens).find(expected)
        if start < 0:
            return self.take_all()
        end, position = start + len(expected), 0
        taken: list[Item] = []
        for index, (token, item) in enumerate(self._tokens):
            if position >= end:
                del self._tokens[:index]
                return taken
            position += len(token)
            if position > start:
                taken.append(item)
        self._tokens.clear()
        return taken

    def take_all(self) -> list[Item]:
        """Return the items of all remaining tokens, and remove these."""
        tokens, self._tokens = self._tokens, []
        return [item for _, item in tokens]
