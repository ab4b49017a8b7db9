"""Sets of characters and their notation in EBNF grammars."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)

Range = tuple[int, int]
"""First and last code point."""


class Characters:
    """A set of characters; it never contains surrogates, since no text has them."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges = _merged(ranges)

    @classmethod
    def of(cls, text: str) -> Characters:
        """Return the set of the characters of ``text``."""
        return cls((ord(character), ord(character)) for character in text)

    @classmethod
    def _normal(cls, ranges: Iterable[Range]) -> Characters:
        """Return the set of ranges that are sorted, apart from each other and free of surrogates."""
        result = cls.__new__(cls)
        result.ranges = tuple(ranges)
        return result

    def __or__(self, other: Characters) -> Characters:
        return Characters((*self.ranges, *other.ranges))

    def __invert__(self) -> Characters:
        gaps, start = [], 0
        for first, last in self.ranges:
            if start < first:
                gaps.extend(_without_surrogates(start, first - 1))
            start = last + 1
        if start <= LAST:
            gaps.extend(_without_surrogates(start, LAST))
        return Characters._normal(gaps)

    def __and__(self, other: Characters) -> Characters:
        common, mine, theirs = [], 0, 0
        while mine < len(self.ranges) and theirs < len(other.ranges):
            (first, last), (their_first, their_last) = self.ranges[mine], other.ranges[theirs]
            if (start := max(first, their_first)) <= (end := min(last, their_last)):
                common.append((start, end))
            if last < their_last:
                mine += 1
            else:
                theirs += 1
        return Characters._normal(common)

    def __sub__(self, other: Characters) -> Characters:
        return self & ~other

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __contains__(self, character: str) -> bool:
        return any(first <= ord(character) <= last for first, last in self.ranges)

    def ebnf(self) -> str:
        """Write the set as a character class."""
        return "[" + "".join(_span(first, last) for first, last in self.ranges) + "]"


def _merged(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort and merge ranges and remove surrogates."""
    merged: list[Range] = []
    for first, last in sorted(part for item in ranges for part in _without_surrogates(*item)):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(part for item in merged for part in _without_surrogates(*item))


def _without_surrogates(first: int, last: int) -> list[Range]:
    below, above = (first, min(last, SURROGATES[0] - 1)), (max(first, SURROGATES[1] + 1), last)
    return [item for item in (below, above) if item[0] <= item[1]]


def _span(first: int, last: int) -> str:
    return _point(first) if first == last else f"{_point(first)}-{_point(last)}"


def _point(code: int) -> str:
    """Write one character of a class; unescaped only if it is unambiguous."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def literal(text: str) -> str:
    """Write ``text`` as a string of an EBNF grammar."""
    return '"' + "".join(character if character in PLAIN else _point(ord(character)) for character in text) + '"'


DIGITS = Characters([(48, 57)])
WORD = DIGITS | Characters([(65, 90), (95, 95), (97, 122)])
ANY_WORD = WORD | Characters([(128, LAST)])
SPACES = Characters.of("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000") | Characters([(0x2000, 0x200A)])
ANY_SPACES = SPACES | Characters.of("\x1c\x1d\x1e\x1f\u0085\ufeff")
LINE_ENDS = Characters.of("\n\r\u2028\u2029")
ALL = ~Characters()
JSON_PLAIN = ALL - Characters([(0, 31), (127, 127)]) - Characters.of('"\\')
"""Characters that a JSON string may contain unescaped."""
PLAIN = Characters([(32, 126)]) - Characters.of('"\\')


@cache
def any_digits() -> Characters:
    """Return the digits of all scripts."""
    return Characters((code, code) for code in range(LAST + 1) if chr(code).isdecimal())
