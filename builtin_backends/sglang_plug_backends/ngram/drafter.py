"""Drafts what followed the last tokens of a sequence where they stood before (prompt lookup, Saxena 2023).

Each place of a sequence is entered once, under the tokens before it, with a reference to the place that was there
before. A guess follows these references for a few places, however long the sequence is.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang_plug import Drafter, SequenceDrafter

from .settings import NGramSettings

CANDIDATES = 16
"""Places that are compared for one guess, the latest first."""


class NGramDrafter(Drafter):
    """Knows nothing of other sequences."""

    def __init__(self, settings: NGramSettings) -> None:
        self._settings = settings

    def begin(self, prompt: Sequence[int], *, salt: str) -> NGramIndex:
        """An index of ``prompt``, made when it is first asked for a guess."""
        return NGramIndex(prompt, self._settings)


class NGramIndex(SequenceDrafter):
    """One sequence, and the places that follow each of its n-grams of ``min_match`` tokens."""

    def __init__(self, prompt: Sequence[int], settings: NGramSettings) -> None:
        self._size, self._longest = settings.min_match, settings.max_match
        self._tokens = list(prompt[-settings.window :] if settings.window else ())
        self._last: dict[int, int] = {}  # hash of an n-gram -> the last place behind it; comparing tells collisions
        self._earlier = array("q")  # for each place from min_match on, the one before it with the same hash, or 0

    def propose(self, tokens: Sequence[int], most: int) -> Sequence[int]:
        """What followed the longest of the matches; one that reaches the end goes on as a loop."""
        self._tokens += tokens
        self._enter()
        place = self._longest_match()
        if place is None:
            return ()
        known = self._tokens
        distance = len(known) - place
        if distance >= most:
            return known[place : place + most]
        return [known[place + step % distance] for step in range(most)]

    def _enter(self) -> None:
        """Know the places that came since, but for the end: what follows the last tokens is the question."""
        size, known, last, earlier = self._size, self._tokens, self._last, self._earlier
        for place in range(size + len(earlier), len(known)):
            key = hash(tuple(known[place - size : place]))
            earlier.append(last.get(key, 0))
            last[key] = place

    def _longest_match(self) -> int | None:
        """The place before which most of the last tokens stand; of equal ones the latest."""
        size, known = self._size, self._tokens
        if len(known) < size:
            return None
        place, best, longest = self._last.get(hash(tuple(known[-size:])), 0), None, size - 1
        for _ in range(CANDIDATES):
            if not place or longest >= self._longest:
                break
            if (length := self._matching(place)) > longest:
                best, longest = place, length
            place = self._earlier[place - size]
        return best

    def _matching(self, place: int) -> int:
        """How many of the last tokens stand before ``place``, as far as they are compared."""
        known = self._tokens
        length, most = 0, min(self._longest, place)
        while length < most and known[place - 1 - length] == known[-1 - length]:
            length += 1
        return length
