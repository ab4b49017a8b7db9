"""Prompt lookup (Saxena 2023): drafts the tokens that followed an earlier occurrence of the last tokens.

Each position of a sequence is indexed once under the tokens before it, linked to the previous position with the same
tokens. A draft follows a few of these links, however long the sequence is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang_plug import Drafter, SequenceDrafter

from .settings import NGramSettings

CANDIDATES = 16
"""Maximum positions compared for one draft, latest first."""


class NGramDrafter(Drafter):
    """Drafter that uses each sequence's own tokens only."""

    def __init__(self, settings: NGramSettings) -> None:
        self._settings = settings

    def begin(self, prompt: Sequence[int], *, salt: str) -> NGramIndex:
        """Create an index of ``prompt``, built when a draft is first requested."""
        return NGramIndex(prompt, self._settings)


class NGramIndex(SequenceDrafter):
    """One sequence and the positions that follow each of its n-grams of ``min_match`` tokens."""

    def __init__(self, prompt: Sequence[int], settings: NGramSettings) -> None:
        self._size, self._longest = settings.min_match, settings.max_match
        self._tokens = list(prompt[-settings.window :] if settings.window else ())
        self._last: dict[int, int] = {}  # hash of an n-gram -> last position after it; a comparison detects collisions
        self._earlier = array("q")  # for each position from min_match on, the previous one with the same hash, or 0

    def propose(self, tokens: Sequence[int], max_draft_tokens: int) -> Sequence[int]:
        """Return the tokens after the longest match; a match that reaches the end continues as a loop."""
        self._tokens += tokens
        self._enter()
        position = self._longest_match()
        if position is None:
            return ()
        known = self._tokens
        distance = len(known) - position
        if distance >= max_draft_tokens:
            return known[position : position + max_draft_tokens]
        return [known[position + step % distance] for step in range(max_draft_tokens)]

    def _enter(self) -> None:
        """Index the new positions except the end, whose continuation is the question."""
        size, known, last, earlier = self._size, self._tokens, self._last, self._earlier
        for position in range(size + len(earlier), len(known)):
            key = hash(tuple(known[position - size : position]))
            earlier.append(last.get(key, 0))
            last[key] = position

    def _longest_match(self) -> int | None:
        """Return the position with the longest match before it; of equal ones the latest."""
        size, known = self._size, self._tokens
        if len(known) < size:
            return None
        position, best, longest = self._last.get(hash(tuple(known[-size:])), 0), None, size - 1
        for _ in range(CANDIDATES):
            if not position or longest >= self._longest:
                break
            if (length := self._matching(position)) > longest:
                best, longest = position, length
            position = self._earlier[position - size]
        return best

    def _matching(self, position: int) -> int:
        """Count the last tokens that also precede ``position``, up to the comparison limit."""
        known = self._tokens
        length, limit = 0, min(self._longest, position)
        while length < limit and known[position - 1 - length] == known[-1 - length]:
            length += 1
        return length
