"""Regular expressions that end an output as soon as its text contains a match."""

from __future__ import annotations

from collections.abc import Sequence

from .automaton import Automaton, Target, automaton_of

MAX_REMEMBERED = 512
"""Steps of a request that are cached, so that most characters cost one look-up; large ones take kilobytes each."""

States = frozenset[Target]
Step = tuple[States, int | None]
"""The states after a character, and the first pattern that has matched."""


class StopPatterns:
    """The compiled patterns of one request, which all of its outputs share.

    Raises ``ValueError`` for patterns that cannot be searched for, and for one that matches the empty text.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._automaton: Automaton = automaton_of(self.patterns)
        self._steps: dict[tuple[States, str], Step] = {}
        self.start, empty = self._automaton.closure(self._automaton.starts, "")
        if empty is not None:
            raise ValueError(f"{self.patterns[empty]!r} matches the empty text, so nothing would be generated")

    def step(self, current: States, character: str) -> Step:
        """Return what follows ``current`` after ``character``; a match may begin at every character."""
        key = (current, character)
        step = self._steps.get(key)
        if step is None:
            if len(self._steps) >= MAX_REMEMBERED:
                self._steps.clear()
            following = self._automaton.step(current, character)
            step = self._automaton.closure((*following, *self._automaton.starts), character)
            self._steps[key] = step
        return step


class PatternMatcher:
    """Searches the text of one output, which comes in pieces, for the earliest end of a match."""

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._current = patterns.start
        self.matched: str | None = None
        """The pattern that has matched."""

    def feed(self, text: str, *, too_early: bool = False) -> int | None:
        """Read ``text`` and return where in it the first match ends; ``None`` if there is none.

        Nothing may be fed after a match. ``too_early``: matches that end in ``text`` do not count.
        """
        for index, character in enumerate(text):
            self._current, matched = self._patterns.step(self._current, character)
            if matched is not None and not too_early:
                self.matched = self._patterns.patterns[matched]
                return index + 1
        return None
