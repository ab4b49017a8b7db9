"""What a recurrent layer remembers of a sequence, and the pool that it lives in.

Keys and values grow with a sequence; a recurrent state (Mamba, linear attention, a short convolution) is of one size
and changes with each token. Each sequence therefore owns one row of a pool, and what the prefix cache may hand to
another sequence are copies that were made at some places of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

import torch
from torch import Tensor

from .batch import zeros
from .transfer import upload

SPARE = 0
"""Row that padding reads and writes."""
ZEROS = 1
"""Row that nobody writes: what a sequence begins with."""
RESERVED = 2
"""Rows that no sequence owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """One state that a model keeps of each sequence."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """``None``: the model's."""

    def bytes(self, dtype: torch.dtype) -> int:
        """What it takes in a model of ``dtype``."""
        return math.prod(self.shape) * (self.dtype or dtype).itemsize


class StatePool:
    """Recurrent states of every sequence: ``states[i]`` is ``[rows, *shape]``, in the order the model named them.

    Row ``SPARE`` is padding's, row ``ZEROS`` stays zero.

    Args:
        shapes: as ``Model.state_shapes`` gave them.
        rows: how many, those two included.
        dtype: the model's.
        device: where it is.
    """

    def __init__(self, shapes: Sequence[StateShape], *, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.states = [zeros((rows, *one.shape), one.dtype or dtype, device) for one in shapes]

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows ``sources`` ``[N]`` int64 to rows ``targets`` ``[N]``; all are read before any is written."""
        for state in self.states:
            state.index_copy_(0, targets, state.index_select(0, sources))


@dataclass(frozen=True, slots=True)
class Runs:
    """Which of a step's tokens belong together, and where the states of each sequence are."""

    rows: Tensor
    """``[B]`` int64: each sequence's row of a pool. A layer finds there what came before the step, and leaves what
    comes after it."""
    lengths: list[int]
    """``[B]`` on the host: new tokens."""
    starts: Tensor
    """``[B + 1]`` int64: the first of each sequence's tokens among the step's, and how many there are."""

    @classmethod
    def of(cls, rows: Sequence[int], lengths: list[int], device: torch.device) -> Self:
        """Of sequences with states in ``rows``, one after the other."""
        starts = upload([0, *accumulate(lengths)], torch.int64, device)
        return cls(upload(rows, torch.int64, device), lengths, starts)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A step's recurrent states."""

    pool: StatePool
    runs: Runs
