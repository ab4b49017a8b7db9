"""Stop strings: found across the pieces that a text arrives in."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on until one of ``stops`` appears in it.

    The end of the text that may be the beginning of a stop string is held back.
    """

    def __init__(self, stops: Sequence[str], *, keep: bool = False) -> None:
        self._stops, self._keep = tuple(stops), keep
        self._held = ""
        self.matched: str | None = None
        """The stop string that was found."""

    def feed(self, text: str) -> str:
        """What of the text so far is certain to belong to the output. Nothing may be fed after a match."""
        if not self._stops:
            return text
        self._held += text
        found = [(place, stop) for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            place, self.matched = min(found, key=lambda one: (one[0], -len(one[1])))
            end = place + len(self.matched) if self._keep else place
            passed, self._held = self._held[:end], ""
            return passed
        kept = max(_overlap(self._held, stop) for stop in self._stops)
        cut = len(self._held) - kept
        passed, self._held = self._held[:cut], self._held[cut:]
        return passed

    def flush(self) -> str:
        """What was held back, now that no more comes."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a proper beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
