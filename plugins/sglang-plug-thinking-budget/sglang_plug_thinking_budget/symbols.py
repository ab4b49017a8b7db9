"""The symbols of tokens: the bytes of a token with text, and one symbol for each special token.

Models may generate a marker of text in different tokens (``</``, ``think``, ``>\\n``), so markers are compared by
symbols and not by tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

BYTES = 256
"""Symbols below are bytes; a special token has the symbol ``BYTES`` + its id."""
Symbols = tuple[int, ...]


def is_special(symbol: int) -> bool:
    """Return True for the symbol of a special token."""
    return symbol >= BYTES


class TokenSymbols:
    """The symbols of every token of a vocabulary.

    Args:
        pieces: bytes of each token, empty for special tokens.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._by_first: dict[int, list[int]] = {}
        for token, piece in enumerate(pieces):
            self._by_first.setdefault(piece[0] if piece else BYTES + token, []).append(token)
        self._containing = cache(self._find)

    def of(self, token: int) -> Sequence[int]:
        """Return the symbols of ``token``."""
        return self.pieces[token] or (BYTES + token,)

    def of_all(self, tokens: Sequence[int]) -> Symbols:
        """Return the symbols of ``tokens``, one after the other."""
        return tuple(symbol for token in tokens for symbol in self.of(token))

    def beginning_with(self, symbol: int) -> Sequence[int]:
        """Return the tokens whose first symbol is ``symbol``."""
        return self._by_first.get(symbol, ())

    def containing(self, symbol: int) -> Sequence[int]:
        """Return the tokens that have ``symbol``."""
        return self._containing(symbol)

    def _find(self, symbol: int) -> Sequence[int]:
        if is_special(symbol):
            return self.beginning_with(symbol)
        return [token for token, piece in enumerate(self.pieces) if symbol in piece]
