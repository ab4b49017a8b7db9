"""Which tokens the constrained rows of a step may take: filled in threads while the model runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from sglang_plug.grammar import MASK_BITS, Grammar

from .sequence import Sequence

MOST_THREADS = 8
NOTHING_ALLOWED = "no token of the vocabulary can continue the output under its constraint"


@dataclass(frozen=True, slots=True)
class Allowed:
    """What some rows of a batch may take."""

    rows: list[int]
    mask: Tensor
    """int32 ``[len(rows), words]`` on the host, as ``Grammar.fill`` makes it."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Row of the batch -> why it has no mask."""

    def apply(self, logits: Tensor) -> Tensor:
        """``logits`` ``[rows, vocabulary]`` with -inf where a token is not allowed; may overwrite them."""
        allowed = _unpack(self.mask.to(logits.device), logits.shape[-1])
        if len(self.rows) == len(logits):
            return logits.masked_fill_(~allowed, -torch.inf)
        index = torch.tensor(self.rows, device=logits.device)
        logits[index] = logits[index].masked_fill_(~allowed, -torch.inf)
        return logits


class Filling:
    """Masks that are being filled."""

    def __init__(self, rows: list[int], mask: Tensor, tasks: list[Future[str | None]]) -> None:
        self._rows, self._mask, self._tasks = rows, mask, tasks

    def result(self) -> Allowed:
        """Wait for all of them."""
        errors = {}
        for row, task in zip(self._rows, self._tasks, strict=True):
            message = task.result()
            if message is not None:
                errors[row] = message
        return Allowed(self._rows, self._mask, errors)


class MaskFiller:
    """Fills masks for a vocabulary of ``vocab_size`` tokens."""

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // MASK_BITS)
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "masks")

    def start(self, sequences: Ordered[Sequence]) -> Filling | None:
        """Begin to fill the masks of a batch; ``None`` if no row has a grammar."""
        rows = [row for row, one in enumerate(sequences) if one.grammar is not None]
        if not rows:
            return None
        mask = torch.zeros(len(rows), self._words, dtype=torch.int32)
        tasks = [self._threads.submit(_fill, sequences[row], mask, place) for place, row in enumerate(rows)]
        return Filling(rows, mask, tasks)


def _fill(sequence: Sequence, mask: Tensor, place: int) -> str | None:
    """Fill one row; returns what is wrong if it fails or stays empty."""
    grammar = sequence.grammar
    assert grammar is not None
    try:
        grammar.fill(mask, place)
        _allow_stops(sequence, grammar, mask[place])
    except Exception as error:
        mask[place] = 0
        return f"the grammar failed: {type(error).__name__}: {error}"
    return None if mask[place].any() else NOTHING_ALLOWED


def _allow_stops(sequence: Sequence, grammar: Grammar, row: Tensor) -> None:
    """Stop tokens may come where the output may end, unless that is too early and something else may come."""
    params = sequence.request.params
    if not params.stop_token_ids:
        return
    if sequence.generated < params.min_new_tokens:
        before = row.clone()
        for token in params.stop_token_ids:
            row[token // MASK_BITS] &= ~_bit(token)
        if row.any():
            return
        row.copy_(before)
    if grammar.may_end:
        for token in params.stop_token_ids:
            row[token // MASK_BITS] |= _bit(token)


def _bit(token: int) -> int:
    """The token's bit of its word, as a signed number of 32 bits."""
    bit = token % MASK_BITS
    return 1 << bit if bit < MASK_BITS - 1 else -(1 << bit)


def _unpack(mask: Tensor, width: int) -> Tensor:
    """int32 ``[rows, words]`` to bool ``[rows, width]``; tokens beyond the mask are not allowed."""
    octets = mask.view(torch.uint8)
    allowed = _table(mask.device)[octets.to(torch.int32)].view(torch.bool)
    if allowed.shape[-1] < width:
        allowed = torch.nn.functional.pad(allowed, (0, width - allowed.shape[-1]))
    return allowed[:, :width]


@cache
def _table(device: torch.device) -> Tensor:
    """For each byte its eight bits, lowest first, as the eight bytes of an int64."""
    rows = [[octet >> bit & 1 for bit in range(8)] for octet in range(256)]
    return torch.tensor(rows, dtype=torch.uint8, device=device).view(torch.int64)[:, 0]
