"""Stop strings that may span several pieces of a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

CACHED_STOPS = 1024


class StopMatcher:
    """Passes text through until one of ``stops`` appears in it.

    The end of the text is held back while it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops = tuple(stops)
        self._keep = keep
        self._overlaps = [0] * len(self._stops)
        self._held = ""
        self._too_early = 0
        """The end of the text, and the number of its first characters in which no stop string may end."""
        self.matched: str | None = None
        """The stop string that appeared."""

    def feed(self, text: str, *, too_early: bool = False) -> str:
        """Return the text that certainly belongs to the output. Nothing may be fed after a match.

        ``too_early``: stop strings that end in ``text`` do not count; those that begin in it do.
        """
        if not self._stops:
            return text
        self._held += text
        if too_early:
            self._too_early = len(self._held)
        elif matches := [(start, stop) for stop in self._stops if (start := self._find(stop)) >= 0]:
            start, self.matched = min(matches, key=lambda match: (match[0], -len(match[1])))
            end = start + len(self.matched) if self._keep else start
            passed, self._held = self._held[:end], ""
            return passed
        self._overlaps = [overlap(stop, text, before) for stop, before in zip(self._stops, self._overlaps, strict=True)]
        cut = len(self._held) - max(self._overlaps)
        passed, self._held = self._held[:cut], self._held[cut:]
        self._too_early = max(0, self._too_early - cut)
        return passed

    def _find(self, stop: str) -> int:
        return self._held.find(stop, max(0, self._too_early - len(stop) + 1))

    def flush(self) -> str:
        """Return the text that is held back, at the end of the output."""
        held, self._held = self._held, ""
        return held


def overlap(stop: str, text: str, before: int) -> int:
    """Return the length of the longest prefix of ``stop`` with which a text ends that continues with ``text``.

    Only prefixes that are shorter than ``stop`` count. ``before``: that length without ``text``. Algorithm: Knuth,
    Morris and Pratt (1977).
    """
    if len(text) >= len(stop):  # what came earlier does not matter
        before, text = 0, text[len(text) - len(stop) + 1 :]
    length = before
    for character in text:
        while length and stop[length] != character:
            length = _borders(stop)[length - 1]
        length += stop[length] == character
        if length == len(stop):
            length = _borders(stop)[-1]
    return length


@lru_cache(CACHED_STOPS)
def _borders(stop: str) -> tuple[int, ...]:
    """Return for each prefix of ``stop`` the length of its longest proper prefix that is also its end."""
    borders, length = [0], 0
    for character in stop[1:]:
        while length and stop[length] != character:
            length = borders[length - 1]
        length += stop[length] == character
        borders.append(length)
    return tuple(borders)
