"""The tables of every kind of reasoning that requests have had, on the host and on the device.

There are few: one for each pair of markers that the server's reasoning parser names. States and positions of all kinds
are numbered together, and keep their numbers when another kind is added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_plug import ReasoningBlock, send, upload

from .symbols import TokenSymbols
from .transitions import NOTHING, Progress, Transitions


class Tables:
    """Looks up states, tokens and positions of many rows at once; queues work on the device and never waits.

    Args:
        symbols: of the vocabulary.
        device: where the rows are.
    """

    def __init__(self, symbols: TokenSymbols, device: torch.device) -> None:
        self._symbols, self._device = symbols, device
        self._kinds: dict[ReasoningBlock, int] = {}
        self._all: list[tuple[Transitions, int, int]] = []
        self._repeating: list[bool] = []

    def kind(self, block: ReasoningBlock) -> int:
        """Return the number of a kind of reasoning; the first request that has it computes its tables."""
        number = self._kinds.get(block)
        if number is None:
            states = sum(len(table.moves) for table, _, _ in self._all)
            positions = sum(len(table.written) for table, _, _ in self._all)
            self._all.append((Transitions.of(block, self._symbols), states, positions))
            self._repeating.append(block.repeats)
            number = self._kinds[block] = len(self._kinds)
            self._send()
        return number

    def repeats(self, kind: int) -> bool:
        """Report whether reasoning of this kind may begin again."""
        return self._repeating[kind]

    def follow(self, kind: int, tokens: Sequence[int], budget: int) -> Progress:
        """Return the progress of an output, in the numbers of all kinds."""
        transitions, states, positions = self._all[kind]
        progress = transitions.follow(tokens, budget)
        position = NOTHING if progress.position == NOTHING else progress.position + positions
        return Progress(progress.state + states, progress.spent, position)

    def moved(self, kind: Tensor, state: Tensor, token: Tensor) -> Tensor:
        """Return the states after one more token."""
        return self._moves[state, self._classes[kind, token].long()]

    def inside(self, state: Tensor) -> Tensor:
        """Return where outputs are inside reasoning."""
        return self._inside[state]

    def first(self, state: Tensor) -> Tensor:
        """Return the positions from which on the end has to be written."""
        return self._first[state]

    def written(self, position: Tensor) -> Tensor:
        """Return the tokens to write; any token where there is no position."""
        return self._written[position.clamp(min=0)]

    def following(self, position: Tensor) -> Tensor:
        """Return the positions after those tokens; any position where there is none."""
        return self._following[position.clamp(min=0)]

    def opens(self, state: Tensor) -> Tensor:
        """Return ``[rows, vocabulary]``: the token continues an opening that has begun, of reasoning that repeats."""
        return self._opens[self._opening[state]]

    def _send(self) -> None:
        """Send the tables of all kinds to the device."""
        width = max(len(table.moves[0]) for table, _, _ in self._all)
        moves, first, following = list[list[int]](), list[int](), list[int]()
        for table, states, positions in self._all:
            fill = [0] * (width - len(table.moves[0]))
            moves += [[target + states for target in row] + fill for row in table.moves]
            first += [position + positions for position in table.first]
            following += [position if position == NOTHING else position + positions for position in table.following]
        self._moves = send(torch.tensor(moves), self._device)
        self._first = upload(first, torch.int64, self._device)
        self._following = upload(following, torch.int64, self._device)
        self._inside = upload(
            [inside for table, _, _ in self._all for inside in table.inside], torch.bool, self._device
        )
        self._written = upload(
            [max(0, token) for table, _, _ in self._all for token in table.written], torch.int64, self._device
        )
        classes = torch.tensor([table.classes for table, _, _ in self._all], dtype=torch.int32)
        self._classes = send(classes, self._device)
        self._send_openings(classes)

    def _send_openings(self, classes: Tensor) -> None:
        """Send a row of all tokens for each state in which an opening has begun, and an empty row for all others."""
        rows, opening = [torch.zeros(classes.shape[1], dtype=torch.bool)], list[int]()
        for (table, _, _), own in zip(self._all, classes.long(), strict=True):
            for continues in table.opens:
                opening.append(len(rows) if any(continues) else 0)
                if any(continues):
                    rows.append(torch.tensor(continues)[own])
        self._opens = send(torch.stack(rows), self._device)
        self._opening = upload(opening, torch.int64, self._device)
