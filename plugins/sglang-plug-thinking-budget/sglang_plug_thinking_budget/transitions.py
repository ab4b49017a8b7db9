"""The machine of symbols as tables of tokens: where each token leads, and what is written to end the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sglang_plug import ReasoningBlock

from .machine import ReasoningMachine, State
from .symbols import Symbols, TokenSymbols, is_special

NOTHING = -1
"""The position of an output into which no end is being written."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """Tables of one kind of reasoning. Tokens that lead to the same states from everywhere are one class."""

    start: int
    """The state of an empty output."""
    classes: Sequence[int]
    """Class of each token."""
    moves: Sequence[Sequence[int]]
    """``moves[state][class]``: the next state."""
    inside: Sequence[bool]
    """For each state: the output is inside reasoning."""
    first: Sequence[int]
    """For each state inside: the position in the end from which on it has to be written."""
    written: Sequence[int]
    """For each position: the token to write there."""
    following: Sequence[int]
    """For each position: the one after its token, ``NOTHING`` at the end."""
    opens: Sequence[Sequence[bool]]
    """``opens[state][class]``: the token continues an opening that has begun, of reasoning that repeats."""

    @classmethod
    def of(cls, block: ReasoningBlock, symbols: TokenSymbols) -> Transitions:
        """Compute the tables of ``block``, which has reasoning."""
        ends = tuple(map(symbols.of_all, block.ends))
        machine = ReasoningMachine(symbols.of_all(block.opening), ends, block.repeats)
        numbers = {state: number for number, state in enumerate(machine.states)}
        classes, moves = _classified(machine, symbols, numbers)
        writing = _Writing.of(block.ends[0], symbols)
        return cls(
            start=numbers[machine.start],
            classes=classes,
            moves=moves,
            inside=[state.where == "inside" for state in machine.states],
            first=[writing.first(state) for state in machine.states],
            written=writing.tokens,
            following=writing.following,
            opens=[
                [machine.repeats and _opens(state, machine.states[target]) for target in row]
                for state, row in zip(machine.states, moves, strict=True)
            ],
        )

    def follow(self, tokens: Sequence[int], budget: int) -> Progress:
        """Return the progress of an output that consists of ``tokens``."""
        state, spent, position = self.start, 0, NOTHING
        for token in tokens:
            was_inside = self.inside[state]
            if was_inside and position == NOTHING and spent >= budget:
                position = self.first[state]
            if position != NOTHING:
                position = self.following[position] if token == self.written[position] else NOTHING
            state = self.moves[state][self.classes[token]]
            spent += was_inside and self.inside[state]
        return Progress(state, spent, position)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an output."""

    state: int
    spent: int
    """Tokens that were generated inside reasoning, without the last one of each end."""
    position: int
    """The position in the end that is written next, ``NOTHING`` if none is being written."""


@dataclass(frozen=True, slots=True)
class _Writing:
    """The tokens of an end, from each of its symbols on."""

    symbols: Symbols
    tokens: tuple[int, ...]
    """For each position, ``NOTHING`` where no token continues the end."""
    following: tuple[int, ...]

    @classmethod
    def of(cls, end: Sequence[int], symbols: TokenSymbols) -> _Writing:
        text, lengths = symbols.of_all(end), [len(symbols.of(token)) for token in end]
        usual = dict(zip(accumulate(lengths, initial=0), end, strict=False))
        tokens = tuple(
            usual[position] if position in usual else _longest(text[position:], symbols)
            for position in range(len(text))
        )
        after = [position + len(symbols.of(token)) if token >= 0 else 0 for position, token in enumerate(tokens)]
        return cls(text, tokens, tuple(position if position < len(text) else NOTHING for position in after))

    def first(self, state: State) -> int:
        """Return the position behind what an output in ``state`` has already written, 0 if it cannot be continued."""
        for count in range(min(len(state.begun), len(self.symbols) - 1), 0, -1):
            if state.begun[-count:] == self.symbols[:count]:
                return count if self._continues(count) else 0
        return 0

    def _continues(self, position: int) -> bool:
        while position != NOTHING and self.tokens[position] != NOTHING:
            position = self.following[position]
        return position == NOTHING


def _longest(text: Symbols, symbols: TokenSymbols) -> int:
    """Return the longest token that ``text`` begins with, ``NOTHING`` if there is none."""
    fitting = [
        token for token in symbols.beginning_with(text[0]) if tuple(symbols.of(token)) == text[: _size(token, symbols)]
    ]
    return max(fitting, key=lambda token: _size(token, symbols), default=NOTHING)


def _size(token: int, symbols: TokenSymbols) -> int:
    return len(symbols.of(token))


def _opens(state: State, target: State) -> bool:
    """Report whether a step from ``state`` to ``target`` continues an opening that has begun with a special token.

    An opening that has begun with text may be any other text.
    """
    if state.where != "before" or not any(map(is_special, state.begun)):
        return False
    return target.where == "inside" or (target.where == "before" and len(target.begun) > len(state.begun))


def _classified(
    machine: ReasoningMachine, symbols: TokenSymbols, numbers: dict[State, int]
) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Return the class of each token, and for each state where the tokens of each class lead."""
    usual = tuple(numbers[machine.idle(state)] for state in machine.states)
    columns: dict[int, list[int]] = {}
    for number, state in enumerate(machine.states):
        for token in _candidates(machine, symbols, state):
            target = numbers[machine.follow(state, symbols.of(token))]
            if target != usual[number]:
                columns.setdefault(token, list(usual))[number] = target
    classes, numbered = [0] * len(symbols.pieces), {usual: 0}
    for token, column in columns.items():
        classes[token] = numbered.setdefault(tuple(column), len(numbered))
    return classes, [list(row) for row in zip(*numbered, strict=True)]


def _candidates(machine: ReasoningMachine, symbols: TokenSymbols, state: State) -> set[int]:
    """Return all tokens that may lead elsewhere than a token without markers does."""
    idle = machine.idle(state)
    live = [symbol for symbol in machine.alphabet() if machine.step(state, symbol) != idle]
    tokens = {token for symbol in live for token in symbols.beginning_with(symbol)}
    return tokens.union(*(symbols.containing(symbol) for symbol in machine.firsts(idle)))
