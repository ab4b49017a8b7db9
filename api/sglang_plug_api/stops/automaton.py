"""Automata of regular expressions, which search a text in time linear in its length.

A pattern becomes states whose number is bounded, and every character of a text is looked at once: there is nothing to
backtrack to, whatever the pattern is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from re import DOTALL, IGNORECASE, MULTILINE
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from re import error as PatternError
from typing import Any

MAX_STATES = 512
"""Most states of all patterns of a request: a character costs at most a step of each."""

Test = Callable[[str], bool]
Target = int
"""Number of a state."""


@dataclass(frozen=True, slots=True)
class Consume:
    """A state that one character is read in."""

    test: Test
    next: Target


@dataclass(frozen=True, slots=True)
class Fork:
    """A state that continues in several others without reading anything."""

    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class AtStart:
    """A state that is passed only where the text begins, or a line if ``lines``."""

    lines: bool
    next: Target


@dataclass(frozen=True, slots=True)
class Accept:
    """The state after a match of pattern ``index``."""

    index: int


State = Consume | Fork | AtStart | Accept


@dataclass(frozen=True, slots=True)
class Automaton:
    """The states of several patterns, and the one that each begins in."""

    states: Sequence[State]
    starts: tuple[Target, ...]

    def closure(self, targets: Iterable[Target], before: str) -> tuple[frozenset[Target], int | None]:
        """Return the consuming states that ``targets`` lead to, and the first pattern that has matched.

        ``before`` is the character before this position; empty at the start of the text.
        """
        consuming, matched = set[Target](), set[int]()
        visited, pending = set[Target](), list(targets)
        while pending:
            target = pending.pop()
            if target in visited:
                continue
            visited.add(target)
            match self.states[target]:
                case Consume():
                    consuming.add(target)
                case Fork(targets=others):
                    pending.extend(others)
                case AtStart(lines=lines, next=following):
                    if not before or (lines and before == "\n"):
                        pending.append(following)
                case Accept(index=index):
                    matched.add(index)
        return frozenset(consuming), min(matched, default=None)

    def step(self, current: Iterable[Target], character: str) -> list[Target]:
        """Return the states after ``character``."""
        following = []
        for target in current:
            state = self.states[target]
            if isinstance(state, Consume) and state.test(character):
                following.append(state.next)
        return following


def automaton_of(patterns: Sequence[str]) -> Automaton:
    """Return the automaton of ``patterns``.

    Raises ``ValueError`` for a pattern that is malformed, that uses what an automaton cannot express, or that has too
    many states.
    """
    builder = _Builder()
    starts = []
    for index, pattern in enumerate(patterns):
        try:
            tree = parser.parse(pattern)
        except (PatternError, OverflowError, RecursionError) as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        try:
            starts.append(builder.sequence(tree, tree.state.flags, builder.add(Accept(index))))
        except _Unsupported as error:
            raise ValueError(f"{pattern!r} {error}") from None
    return Automaton(tuple(builder.states), tuple(starts))


class _Unsupported(ValueError):
    """A part of a pattern that no automaton can express."""


class _Builder:
    """Builds the states of patterns from their end to their start."""

    def __init__(self) -> None:
        self.states: list[State] = []

    def add(self, state: State) -> Target:
        """Append a state and return its number."""
        if len(self.states) >= MAX_STATES:
            raise _Unsupported(f"is too large: all patterns together have more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def sequence(self, items: Any, flags: int, following: Target) -> Target:
        """Return the start of ``items``, one after the other, before ``following``."""
        for code, value in reversed(list(items)):
            following = self._item(code, value, flags, following)
        return following

    def _item(self, code: Any, value: Any, flags: int, following: Target) -> Target:
        if code in (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN):
            return self.add(Consume(_test(code, value, flags), following))
        if code is codes.SUBPATTERN:
            _, added, removed, inner = value
            return self.sequence(inner, (flags | added) & ~removed, following)
        if code is codes.BRANCH:
            return self.add(Fork(tuple(self.sequence(branch, flags, following) for branch in value[1])))
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
            minimum, maximum, repeated = value
            return self._repeat(minimum, maximum, repeated, flags, following)
        if code is codes.AT and value in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING):
            return self.add(AtStart(bool(flags & MULTILINE) and value is codes.AT_BEGINNING, following))
        raise _Unsupported(
            f"uses {_DESCRIPTIONS.get(code, str(code).lower())}, which a growing text cannot be matched by"
        )

    def _repeat(self, minimum: int, maximum: Any, items: Any, flags: int, following: Target) -> Target:
        if maximum is codes.MAXREPEAT:
            loop = self.add(Fork(()))
            self.states[loop] = Fork((self.sequence(items, flags, loop), following))
            following = loop
        else:
            for _ in range(maximum - minimum):
                start = self.sequence(items, flags, following)
                if start == following:  # nothing is repeated
                    return following
                following = self.add(Fork((start, following)))
        for _ in range(minimum):
            start = self.sequence(items, flags, following)
            if start == following:
                break
            following = start
        return following


_DESCRIPTIONS = {
    codes.AT: "an end or a border of words",
    codes.ASSERT: "a look around",
    codes.ASSERT_NOT: "a look around",
    codes.GROUPREF: "a reference to a group",
    codes.GROUPREF_EXISTS: "a reference to a group",
    codes.ATOMIC_GROUP: "an atomic group",
    codes.POSSESSIVE_REPEAT: "a possessive repetition",
}


def _test(code: Any, value: Any, flags: int) -> Test:
    """Return the test of one character."""
    if code is codes.ANY:
        return (lambda character: True) if flags & DOTALL else (lambda character: character != "\n")
    negated = code is codes.NOT_LITERAL
    members = [(codes.LITERAL, value)] if code is not codes.IN else list(value)
    if members and members[0][0] is codes.NEGATE:
        negated, members = True, members[1:]
    singles = frozenset(chr(number) for kind, number in members if kind is codes.LITERAL)
    ranges = [(chr(low), chr(high)) for kind, (low, high) in _of(members, codes.RANGE)]
    categories = [_CATEGORIES[number] for _, number in _of(members, codes.CATEGORY)]

    def holds(character: str) -> bool:
        return (
            character in singles
            or any(low <= character <= high for low, high in ranges)
            or any(category(character) for category in categories)
        )

    if flags & IGNORECASE:
        return lambda character: (
            (holds(character) or any(map(holds, (*character.lower(), *character.upper())))) is not negated
        )
    return lambda character: holds(character) is not negated


def _of(members: Iterable[tuple[Any, Any]], kind: Any) -> list[tuple[Any, Any]]:
    return [member for member in members if member[0] is kind]


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[Any, Test] = {
    codes.CATEGORY_DIGIT: str.isdecimal,
    codes.CATEGORY_NOT_DIGIT: lambda character: not character.isdecimal(),
    codes.CATEGORY_SPACE: str.isspace,
    codes.CATEGORY_NOT_SPACE: lambda character: not character.isspace(),
    codes.CATEGORY_WORD: _is_word,
    codes.CATEGORY_NOT_WORD: lambda character: not _is_word(character),
}
