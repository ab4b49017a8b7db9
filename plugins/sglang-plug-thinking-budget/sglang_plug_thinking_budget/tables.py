"""The tables of every kind of reasoning that requests have had, on the host and on the device.

There are few: one for each pair of markers that the server's reasoning parser names. States and positions of all kinds
are numbered together, and keep their numbers when another kind is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import ReasoningBlock, send, upload

from .symbols import TokenSymbols
from .transitions import NO_POSITION, Progress, Transitions


@dataclass(frozen=True, slots=True)
class NumberedTransitions:
    """The transitions of one kind of reasoning, and the numbers of its first state and position among all kinds."""

    transitions: Transitions
    first_state: int
    first_position: int

    def position(self, position: int) -> int:
        """Return the number among all kinds of a position of this kind."""
        return position if position == NO_POSITION else position + self.first_position


@dataclass(frozen=True, slots=True)
class DeviceTables:
    """The transitions of all kinds of reasoning as tensors on the device."""

    moves: Tensor
    """``[states, classes]``: the next state."""
    classes: Tensor
    """``[kinds, vocabulary]``: the class of each token."""
    inside: Tensor
    """``[states]``: the output is inside reasoning."""
    first: Tensor
    """``[states]``: the position in the end marker of the first token that is still missing."""
    token_at: Tensor
    """``[positions]``: the token of the end marker."""
    next_position: Tensor
    """``[positions]``: the position after it."""
    opens: Tensor
    """``[rows, vocabulary]``: the tokens that continue an incomplete opening; none in the first row."""
    opening: Tensor
    """``[states]``: the row of ``opens``."""

    @classmethod
    def of(cls, kinds: Sequence[NumberedTransitions], vocab_size: int, device: torch.device) -> DeviceTables:
        """Send the tables of ``kinds`` to the device."""
        width = max((len(kind.transitions.moves[0]) for kind in kinds), default=0)
        moves, first, token_at, next_position = list[list[int]](), list[int](), list[int](), list[int]()
        for kind in kinds:
            table = kind.transitions
            fill = [0] * (width - len(table.moves[0]))
            moves += [[target + kind.first_state for target in row] + fill for row in table.moves]
            first += map(kind.position, table.first)
            token_at += [max(0, token) for token in table.token_at]
            next_position += map(kind.position, table.next_position)
        classes = torch.tensor([kind.transitions.classes for kind in kinds], dtype=torch.int32).view(
            len(kinds), vocab_size
        )
        opens, opening = _openings(kinds, classes)
        return cls(
            moves=send(torch.tensor(moves, dtype=torch.int64).view(len(moves), width), device),
            classes=send(classes, device),
            inside=upload([inside for kind in kinds for inside in kind.transitions.inside], torch.bool, device),
            first=upload(first, torch.int64, device),
            token_at=upload(token_at, torch.int64, device),
            next_position=upload(next_position, torch.int64, device),
            opens=send(opens, device),
            opening=upload(opening, torch.int64, device),
        )


def _openings(kinds: Sequence[NumberedTransitions], classes: Tensor) -> tuple[Tensor, list[int]]:
    """Return one row of all tokens per state with an incomplete opening after an empty row, and each state's row."""
    rows, opening = [torch.zeros(classes.shape[1], dtype=torch.bool)], list[int]()
    for kind, own in zip(kinds, classes.long(), strict=True):
        for continues in kind.transitions.opens:
            opening.append(len(rows) if any(continues) else 0)
            if any(continues):
                rows.append(torch.tensor(continues)[own])
    return torch.stack(rows), opening


class Tables:
    """Looks up states, tokens and positions of many rows at once; queues work on the device and never waits.

    Args:
        symbols: symbols of the vocabulary.
        device: the device of the rows.
    """

    def __init__(self, symbols: TokenSymbols, device: torch.device) -> None:
        self._symbols, self._device = symbols, device
        self._numbers: dict[ReasoningBlock, int] = {}
        self._kinds: list[NumberedTransitions] = []
        self._repeating: list[bool] = []
        self._on_device = DeviceTables.of((), len(symbols.pieces), device)

    def kind(self, block: ReasoningBlock) -> int:
        """Return the number of a kind of reasoning; the first request that has it computes its tables."""
        number = self._numbers.get(block)
        if number is None:
            states = sum(len(kind.transitions.moves) for kind in self._kinds)
            positions = sum(len(kind.transitions.token_at) for kind in self._kinds)
            self._kinds.append(NumberedTransitions(Transitions.of(block, self._symbols), states, positions))
            self._repeating.append(block.repeats)
            number = self._numbers[block] = len(self._numbers)
            self._on_device = DeviceTables.of(self._kinds, len(self._symbols.pieces), self._device)
        return number

    def repeats(self, kind: int) -> bool:
        """Return True if reasoning of this kind may begin again."""
        return self._repeating[kind]

    def follow(self, kind: int, tokens: Sequence[int], budget: int) -> Progress:
        """Return the progress of an output, in the numbers of all kinds."""
        numbered = self._kinds[kind]
        progress = numbered.transitions.follow(tokens, budget)
        return Progress(progress.state + numbered.first_state, progress.spent, numbered.position(progress.position))

    def moved(self, kind: Tensor, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after one more token."""
        return self._on_device.moves[state, self._on_device.classes[kind, token].long()]

    def inside(self, state: Tensor) -> Tensor:
        """Return where outputs are inside reasoning."""
        return self._on_device.inside[state]

    def first(self, state: Tensor) -> Tensor:
        """Return the positions in the end marker of the first token that is still missing."""
        return self._on_device.first[state]

    def token_at(self, position: Tensor) -> Tensor:
        """Return the tokens of the end marker; any token where there is no position."""
        return self._on_device.token_at[position.clamp(min=0)]

    def next_position(self, position: Tensor) -> Tensor:
        """Return the positions after those tokens; any position where there is none."""
        return self._on_device.next_position[position.clamp(min=0)]

    def opens(self, state: Tensor) -> Tensor:
        """Return ``[rows, vocabulary]``: the token continues an incomplete opening of reasoning that repeats."""
        return self._on_device.opens[self._on_device.opening[state]]
