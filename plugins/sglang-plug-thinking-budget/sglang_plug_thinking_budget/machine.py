"""A finite-state machine that follows an output, symbol by symbol: before, inside and after reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from .symbols import Symbols

BLANKS = frozenset(b" \t\r\n")


@dataclass(frozen=True, slots=True)
class State:
    """A state: where the output is, and the part of a marker that it ends with."""

    where: Literal["before", "inside", "after"]
    """``before`` reasoning that may still begin, ``inside`` it, or ``after`` all of it."""
    begun: Symbols = ()
    """The longest end of the output that begins a marker: the opening before reasoning, one of its ends inside."""


AFTER = State("after")
INSIDE = State("inside")
BEFORE = State("before")


@dataclass(frozen=True)
class ReasoningMachine:
    """The states of outputs whose reasoning has certain markers."""

    opening: Symbols
    """Empty: outputs begin inside reasoning."""
    ends: tuple[Symbols, ...]
    """The first one that occurs ends the reasoning; none is empty."""
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
        return State("inside", _longest_end(text, self.ends))

    def follow(self, state: State, symbols: Sequence[int]) -> State:
        """Return the state after ``symbols``."""
        for symbol in symbols:
            if state is AFTER:
                break
            state = self.step(state, symbol)
        return state

    def idle(self, state: State) -> State:
        """Return the state after a symbol that is in no marker, from ``state``."""
        if state.where == "inside":
            return INSIDE
        return AFTER if state.where == "after" else self._outside

    def firsts(self, state: State) -> frozenset[int]:
        """Return the symbols by which an output leaves the idle ``state``."""
        if state.where == "inside":
            return frozenset(end[0] for end in self.ends)
        return frozenset(self.opening[:1]) if state is BEFORE else frozenset()

    def alphabet(self) -> frozenset[int]:
        """Return the symbols that lead anywhere else than to an idle state, from some state."""
        return frozenset((*self.opening, *(symbol for end in self.ends for symbol in end), *BLANKS))

    @property
    def _outside(self) -> State:
        """The state after reasoning, and after the first symbols of an output that begins otherwise."""
        return BEFORE if self.repeats and self.opening else AFTER

    def _before(self, text: Symbols) -> State:
        if text == self.opening:
            return INSIDE
        if self.repeats:
            if text[-len(self.opening) :] == self.opening:
                return INSIDE
            return State("before", _longest_end(text, (self.opening,)))
        if len(text) == 1 and text[0] in BLANKS:
            return BEFORE
        return State("before", text) if text == self.opening[: len(text)] else AFTER


def _longest_end(text: Symbols, markers: Sequence[Symbols]) -> Symbols:
    """Return the longest end of ``text`` that a marker begins with and is longer than."""
    for start in range(len(text)):
        end = text[start:]
        if any(len(end) < len(marker) and marker[: len(end)] == end for marker in markers):
            return end
    return ()
