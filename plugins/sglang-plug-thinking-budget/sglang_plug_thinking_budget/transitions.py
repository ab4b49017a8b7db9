"""The automaton of symbols as tables of tokens: the state after each token, and the tokens that end the reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from sglang_plug import ReasoningBlock

from .reasoning_automaton import ReasoningAutomaton, State
from .symbols import Symbols, TokenSymbols, is_special

NO_POSITION = -1
"""The position of an output whose reasoning is not being ended."""
NO_TOKEN = -1
"""Stands for the token at a position where no token continues the end marker."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """Tables of one kind of reasoning. Tokens that lead to the same state from each state are one class."""

    start: int
    """The state of an empty output."""
    classes: Sequence[int]
    """Class of each token."""
    moves: Sequence[Sequence[int]]
    """``moves[state][class]``: the next state."""
    inside: Sequence[bool]
    """For each state: the output is inside reasoning."""
    first: Sequence[int]
    """For each state inside: the position in the end marker of the first token that is still missing."""
    token_at: Sequence[int]
    """For each position: the token of the end marker."""
    next_position: Sequence[int]
    """For each position: the position after its token; ``NO_POSITION`` after the last token."""
    opens: Sequence[Sequence[bool]]
    """``opens[state][class]``: the token continues an incomplete opening of reasoning that repeats."""

    @classmethod
    def of(cls, block: ReasoningBlock, symbols: TokenSymbols) -> Transitions:
        """Compute the tables of ``block``, which has reasoning."""
        ends = tuple(map(symbols.of_all, block.ends))
        automaton = ReasoningAutomaton(symbols.of_all(block.opening), ends, block.repeats)
        numbers = {state: number for number, state in enumerate(automaton.states)}
        classes, moves = _classified(automaton, symbols, numbers)
        end_marker = EndMarkerTokens.of(block.ends[0], symbols)
        return cls(
            start=numbers[automaton.start],
            classes=classes,
            moves=moves,
            inside=[state.where == "inside" for state in automaton.states],
            first=[end_marker.first(state) for state in automaton.states],
            token_at=end_marker.token_at,
            next_position=end_marker.next_position,
            opens=[
                [automaton.repeats and _opens(state, automaton.states[target]) for target in row]
                for state, row in zip(automaton.states, moves, strict=True)
            ],
        )

    def follow(self, tokens: Sequence[int], budget: int) -> Progress:
        """Return the progress of an output that consists of ``tokens``."""
        state, spent, position = self.start, 0, NO_POSITION
        for token in tokens:
            was_inside = self.inside[state]
            if was_inside and position == NO_POSITION and spent >= budget:
                position = self.first[state]
            if position != NO_POSITION:
                position = self.next_position[position] if token == self.token_at[position] else NO_POSITION
            state = self.moves[state][self.classes[token]]
            spent += was_inside and self.inside[state]
        return Progress(state, spent, position)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an output."""

    state: int
    spent: int
    """Tokens generated inside reasoning, without the last token of each end marker."""
    position: int
    """The position in the end marker whose token is due; ``NO_POSITION`` if none is due."""


@dataclass(frozen=True, slots=True)
class EndMarkerTokens:
    """The tokens that complete an end marker from each position in it."""

    symbols: Symbols
    token_at: tuple[int, ...]
    """For each position: the token; ``NO_TOKEN`` where no token continues the marker."""
    next_position: tuple[int, ...]

    @classmethod
    def of(cls, end: Sequence[int], symbols: TokenSymbols) -> EndMarkerTokens:
        """Compute the tokens of the marker ``end``; parts of its own tokens are completed by the longest tokens."""
        text, lengths = symbols.of_all(end), [len(symbols.of(token)) for token in end]
        usual = dict(zip(accumulate(lengths, initial=0), end, strict=False))
        tokens = tuple(
            usual[position] if position in usual else _longest(text[position:], symbols)
            for position in range(len(text))
        )
        after = [position + len(symbols.of(token)) if token != NO_TOKEN else 0 for position, token in enumerate(tokens)]
        return cls(text, tokens, tuple(position if position < len(text) else NO_POSITION for position in after))

    def first(self, state: State) -> int:
        """Return the position after the part of the marker that the output has; 0 if no tokens can complete it."""
        for count in range(min(len(state.begun), len(self.symbols) - 1), 0, -1):
            if state.begun[-count:] == self.symbols[:count]:
                return count if self._continues(count) else 0
        return 0

    def _continues(self, position: int) -> bool:
        while position != NO_POSITION and self.token_at[position] != NO_TOKEN:
            position = self.next_position[position]
        return position == NO_POSITION


def _longest(text: Symbols, symbols: TokenSymbols) -> int:
    """Return the longest token that ``text`` begins with; ``NO_TOKEN`` if there is none."""
    fitting = [
        token for token in symbols.beginning_with(text[0]) if tuple(symbols.of(token)) == text[: _size(token, symbols)]
    ]
    return max(fitting, key=lambda token: _size(token, symbols), default=NO_TOKEN)


def _size(token: int, symbols: TokenSymbols) -> int:
    return len(symbols.of(token))


def _opens(state: State, target: State) -> bool:
    """Return True if a step from ``state`` to ``target`` continues an opening that has begun with a special token.

    Text that begins like an opening may also continue as ordinary text.
    """
    if state.where != "before" or not any(map(is_special, state.begun)):
        return False
    return target.where == "inside" or (target.where == "before" and len(target.begun) > len(state.begun))


def _classified(
    automaton: ReasoningAutomaton, symbols: TokenSymbols, numbers: dict[State, int]
) -> tuple[Sequence[int], Sequence[Sequence[int]]]:
    """Return the class of each token, and for each state the next state by class."""
    usual = tuple(numbers[automaton.reset(state)] for state in automaton.states)
    columns: dict[int, list[int]] = {}
    for number, state in enumerate(automaton.states):
        for token in _candidates(automaton, symbols, state):
            target = numbers[automaton.follow(state, symbols.of(token))]
            if target != usual[number]:
                columns.setdefault(token, list(usual))[number] = target
    classes, numbered = [0] * len(symbols.pieces), {usual: 0}
    for token, column in columns.items():
        classes[token] = numbered.setdefault(tuple(column), len(numbered))
    return classes, [list(row) for row in zip(*numbered, strict=True)]


def _candidates(automaton: ReasoningAutomaton, symbols: TokenSymbols, state: State) -> set[int]:
    """Return all tokens after which the state may differ from that after a token without parts of markers."""
    reset = automaton.reset(state)
    live = [symbol for symbol in automaton.alphabet() if automaton.step(state, symbol) != reset]
    tokens = {token for symbol in live for token in symbols.beginning_with(symbol)}
    return tokens.union(*(symbols.containing(symbol) for symbol in automaton.marker_starts(reset)))
