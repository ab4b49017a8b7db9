"""Stop strings that may span several pieces of a text."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until one of ``stops`` appears in it.

    The end of the text is held back while it may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops, self._keep = tuple(stops), keep
        self._held = ""
        self.matched: str | None = None
        """The stop string that appeared."""

    def feed(self, text: str) -> str:
        """Return the text that certainly belongs to the output. Nothing may be fed after a match."""
        if not self._stops:
            return text
        self._held += text
        matches = [(start, stop) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if matches:
            start, self.matched = min(matches, key=lambda match: (match[0], -len(match[1])))
            end = start + len(self.matched) if self._keep else start
            passed, self._held = self._held[:end], ""
            return passed
        kept = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - kept
        passed, self._held = self._held[:cut], self._held[cut:]
        return passed

    def flush(self) -> str:
        """Return the text that is held back, at the end of the output."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
