"""The states that recurrent layers keep of a sequence, and the pool that holds them.

Keys and values grow with a sequence; a recurrent state (Mamba, linear attention, a short convolution) has a fixed size
and changes with each token. Each sequence therefore owns one row of a pool. The prefix cache shares copies of a state
that were made at certain positions of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Self

import torch
from torch import Tensor

from sglang_plug.ops.host_device_copy import upload

from .batch import zeros


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """One state that a model keeps of each sequence."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    """``None``: the model's."""

    def bytes(self, dtype: torch.dtype) -> int:
        """Return the bytes that the state needs in a model of ``dtype``."""
        return math.prod(self.shape) * (self.dtype or dtype).itemsize


class StatePool:
    """The recurrent states of every sequence: ``states[i]`` is ``[rows, *shape]``, in the order of ``shapes``.

    Row ``PADDING`` is for padding; row ``ZEROS`` stays zero.

    Args:
        shapes: the result of ``Model.state_shapes``.
        rows: number of rows, those two included.
        dtype: the model's.
        device: the device of the tensors.
    """

    PADDING: ClassVar[int] = 0
    """The row that padding reads and writes."""
    ZEROS: ClassVar[int] = 1
    """The row of zeros that every sequence starts from; nothing writes to it."""
    RESERVED: ClassVar[int] = 2
    """Number of rows that no sequence owns."""

    def __init__(self, shapes: Sequence[StateShape], *, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.states = [zeros((rows, *shape.shape), shape.dtype or dtype, device) for shape in shapes]

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy rows ``sources`` ``[N]`` int64 to rows ``targets`` ``[N]``; all are read before any is written."""
        for state in self.states:
            state.index_copy_(0, targets, state.index_select(0, sources))


@dataclass(frozen=True, slots=True)
class SequenceSpans:
    """The spans of consecutive tokens of the sequences of a step, and the rows of their states."""

    rows: Tensor
    """``[B]`` int64, each sequence's row of the pool. A layer reads the state before the step there, and writes the
    state after it."""
    lengths: list[int]
    """``[B]`` on the host, the number of new tokens of each sequence."""
    starts: Tensor
    """``[B + 1]`` int64: the index of each sequence's first token in the step, then the number of tokens in the
    step."""

    @classmethod
    def of(cls, rows: Sequence[int], lengths: list[int], device: torch.device) -> Self:
        """Build the spans of sequences that lie one after the other and have their states in ``rows``."""
        starts = upload([0, *accumulate(lengths)], torch.int64, device)
        return cls(upload(rows, torch.int64, device), lengths, starts)


@dataclass(frozen=True, slots=True)
class RecurrentInputs:
    """The recurrent states of a step: the pool and the spans of the sequences."""

    pool: StatePool
    spans: SequenceSpans
