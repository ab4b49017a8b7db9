"""A finite automaton that reads an output symbol by symbol: before, inside and after reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .symbols import Symbols

BLANKS = frozenset(b" \t\r\n")


@dataclass(frozen=True, slots=True)
class State:
    """A state: where the output is, and the incomplete marker that it ends with."""

    where: Literal["before", "inside", "after"]
    """``before`` reasoning, which may still begin, ``inside`` it, or ``after`` it."""
    begun: Symbols = ()
    """The longest suffix of the output that begins a marker: the opening before reasoning, an end marker inside it."""


AFTER = State("after")
INSIDE = State("inside")
BEFORE = State("before")


@dataclass(frozen=True)
class ReasoningAutomaton:
    """The automaton of outputs whose reasoning has certain markers."""

    opening: Symbols
    """Empty: outputs begin inside reasoning."""
    ends: tuple[Symbols, ...]
    """Markers that end the reasoning; none is empty."""
    repeats: bool
    """True if reasoning may begin anywhere and more than once."""

    @property
    def start(self) -> State:
        """The state of an empty output."""
        return BEFORE if self.opening else INSIDE

    @cached_property
    def states(self) -> tuple[State, ...]:
        """Every state that an output can reach."""
        before = [State("before", self.opening[:count]) for count in range(len(self.opening))]
        parts = dict.fromkeys(end[:count] for end in self.ends for count in range(len(end)))
        return (AFTER, *before, *(State("inside", part) for part in parts))

    def step(self, state: State, symbol: int) -> State:
        """Return the state after one more symbol."""
        if state.where == "after":
            return AFTER
        text = (*state.begun, symbol)
        if state.where == "before":
            return self._before(text)
        if any(text[-len(end) :] == end for end in self.ends):
            return self._outside
        return State("inside", _longest_partial_marker(text, self.ends))

    def follow(self, state: State, symbols: Sequence[int]) -> State:
        """Return the state after ``symbols``."""
        for symbol in symbols:
            if state is AFTER:
                break
            state = self.step(state, symbol)
        return state

    def reset(self, state: State) -> State:
        """Return the state after ``state`` and a symbol that is in no marker."""
        if state.where == "inside":
            return INSIDE
        return AFTER if state.where == "after" else self._outside

    def marker_starts(self, state: State) -> frozenset[int]:
        """Return the symbols that begin a marker in ``state``, where no marker has begun."""
        if state.where == "inside":
            return frozenset(end[0] for end in self.ends)
        return frozenset(self.opening[:1]) if state is BEFORE else frozenset()

    def alphabet(self) -> frozenset[int]:
        """Return the symbols that occur in a marker or may come before an opening."""
        return frozenset((*self.opening, *(symbol for end in self.ends for symbol in end), *BLANKS))

    @property
    def _outside(self) -> State:
        """The state after reasoning, and of an output that has not begun with reasoning."""
        return BEFORE if self.repeats and self.opening else AFTER

    def _before(self, text: Symbols) -> State:
        if text == self.opening:
            return INSIDE
        if self.repeats:
            if text[-len(self.opening) :] == self.opening:
                return INSIDE
            return State("before", _longest_partial_marker(text, (self.opening,)))
        if len(text) == 1 and text[0] in BLANKS:
            return BEFORE
        return State("before", text) if text == self.opening[: len(text)] else AFTER


def _longest_partial_marker(text: Symbols, markers: Sequence[Symbols]) -> Symbols:
    """Return the longest suffix of ``text`` that is a prefix of a marker, but not the whole marker."""
    for start in range(len(text)):
        suffix = text[start:]
        if any(len(suffix) < len(marker) and marker[: len(suffix)] == suffix for marker in markers):
            return suffix
    return ()
