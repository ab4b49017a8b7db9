"""Masks of tokens, as ``Grammar.fill`` writes them: token ``i`` is bit ``i % 32`` of word ``i // 32``."""

from __future__ import annotations

MASK_BITS = 32
"""Number of tokens in one word of a mask."""


def word_and_bit(token: int) -> tuple[int, int]:
    """Return the word of a mask's row that holds ``token``, and its bit there as a signed number of 32 bits."""
    word, bit = divmod(token, MASK_BITS)
    return word, 1 << bit if bit < MASK_BITS - 1 else -(1 << bit)
