"""The plan of a step: the rows of each kernel and their index tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sglang_plug import ForwardBatch, send

SMALLEST_TILE = 16
"""Minimum rows and columns of a matrix product in Triton."""
ALIGNMENT = 4
"""Index columns start at multiples of 16 bytes: one compiled kernel serves them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """Rows of one new token. Tensors are int32 views of ``index``."""

    index: Tensor
    tokens: Tensor
    """``[rows]``, the row's index among the step's tokens."""
    sequences: Tensor
    """``[rows]``, the row's index in ``batch.tables``."""
    lengths: Tensor
    """``[rows]``, contexts."""
    splits: int
    """Number of splits of each context."""
    parts: Tensor | None
    """Results of the splits, ``[rows, heads, splits, value_dim]`` float32; ``None`` if there is one split."""
    sums: Tensor | None
    """Log2 of the splits' sums of exponentials, ``[rows, heads, splits]`` float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPlan:
    """Sequences of several new tokens, cut into blocks of queries. Tensors are int32."""

    block_sequences: Tensor
    """``[blocks]``, the sequence of each block's queries."""
    block_starts: Tensor
    """``[blocks]``, the block's first query within its sequence."""
    query_starts: Tensor
    """``[B]``, each sequence's first token."""
    query_lengths: Tensor
    """``[B]``, the number of each sequence's new tokens."""
    lengths: Tensor
    """``[B]``, contexts."""
    query_block: int
    """Queries in a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plans of decode and prefill rows, which a batch can mix."""

    decode: DecodePlan | None
    prefill: PrefillPlan | None


def decode_rows(batch: ForwardBatch) -> list[int]:
    """Return the sequences that add one token to a pool; none without a pool."""
    if batch.kv is None:
        return []
    return [row for row, new in enumerate(batch.query_lens) if new == 1]


def decode_columns(batch: ForwardBatch, rows: Sequence[int]) -> list[list[int]]:
    """Return tokens, sequences and contexts of ``rows``."""
    starts = query_starts(batch)
    return [[starts[row] for row in rows], list(rows), [batch.kv_lens[row] for row in rows]]


def prefill_plan(batch: ForwardBatch, rows: Sequence[int], largest_block: int, device: torch.device) -> PrefillPlan:
    """Plan blocks of ``rows``, those with the longest context first to balance the device."""
    block = min(tile(max(batch.query_lens[row] for row in rows)), largest_block)
    blocks = [(row, start) for row in rows for start in range(0, batch.query_lens[row], block)]
    blocks.sort(key=lambda item: batch.query_lens[item[0]] - batch.kv_lens[item[0]] - item[1])
    columns = [
        [row for row, _ in blocks],
        [start for _, start in blocks],
        query_starts(batch),
        batch.query_lens,
        batch.kv_lens,
    ]
    sequences, starts, first_tokens, query_lengths, lengths = columns_of(send(pack(columns), device), columns)
    return PrefillPlan(
        block_sequences=sequences,
        block_starts=starts,
        query_starts=first_tokens,
        query_lengths=query_lengths,
        lengths=lengths,
        query_block=block,
    )


def query_starts(batch: ForwardBatch) -> list[int]:
    """Return the row at which each sequence's new tokens begin, ``[B]``."""
    return [0, *accumulate(batch.query_lens)][:-1]


def tile(length: int) -> int:
    """Return the power of two that holds ``length`` rows or columns, large enough for a matrix product."""
    return max(1 << (length - 1).bit_length(), SMALLEST_TILE)


def tiles(length: int) -> tuple[int, int]:
    """Return a power of two, and another or 0 for the rest, that together hold ``length`` most tightly."""
    whole, largest = tile(length), 1 << (length.bit_length() - 1)
    if length <= SMALLEST_TILE or largest + tile(length - largest) >= whole:
        return whole, 0
    return largest, tile(length - largest)


def pack(columns: Sequence[Sequence[int]]) -> Tensor:
    """Concatenate all columns in one int32 host tensor, each aligned."""
    padded: list[int] = []
    for column in columns:
        padded += column
        padded += [0] * (-len(column) % ALIGNMENT)
    return torch.tensor(padded, dtype=torch.int32)


def columns_of(index: Tensor, columns: Sequence[Sequence[int]]) -> list[Tensor]:
    """Return the columns of ``pack`` as views of ``index``."""
    result, start = [], 0
    for column in columns:
        result.append(index[start : start + len(column)])
        start += len(column) + -len(column) % ALIGNMENT
    return result
