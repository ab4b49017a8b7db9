"""Which sequences of a step go to which kernel, and the index arrays that FlashInfer wants for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from sglang_plug import ForwardBatch

Role = Literal["decode", "paged", "ragged"]
"""One new token each; several, over pages of the pool; several, with nothing before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Sequences of one step that one kernel serves. The index arrays are int32, those not marked on the host."""

    role: Role
    tokens: slice | Tensor
    """Their rows among the step's tokens: a range, or ``[n]`` int64 on the device."""
    query_indptr: Tensor
    """``[rows + 1]``: where each sequence's new tokens begin among ``tokens``."""
    page_indptr: Tensor
    """``[rows + 1]``: where each sequence's pages begin in ``pages``."""
    last_page: Tensor
    """``[rows]``: tokens in each sequence's last page."""
    pages: Tensor | None
    """``[page_indptr[-1]]`` on the device; ``None`` where keys come from the step alone."""


def parts_of(batch: ForwardBatch, device: torch.device, *, ragged: bool = True) -> list[Part]:
    """The step's sequences by role, at most one part each: first the decodes, then the rest.

    With a pool, ``ragged`` allows that the rest attends to the step's own keys where it sees no others.
    """
    rows = range(len(batch.query_lens))
    if batch.kv is None:
        return [make_part("ragged", batch, rows, device)]
    decodes = [row for row in rows if batch.query_lens[row] == 1]
    others = [row for row in rows if batch.query_lens[row] > 1]
    parts = [make_part("decode", batch, decodes, device)] if decodes else []
    if others:
        cold = ragged and all(batch.query_lens[row] == batch.kv_lens[row] for row in others)
        parts.append(make_part("ragged" if cold else "paged", batch, others, device))
    return parts


def make_part(role: Role, batch: ForwardBatch, rows: Sequence[int], device: torch.device) -> Part:
    """One part: ``rows`` are sequences of the batch, in order."""
    size = batch.page_size
    lengths = [batch.kv_lens[row] for row in rows]
    counts = [-(-length // size) for length in lengths]
    return Part(
        role=role,
        tokens=_token_rows(batch, rows, device),
        query_indptr=_indptr([batch.query_lens[row] for row in rows]),
        page_indptr=_indptr(counts),
        last_page=_host([length - (count - 1) * size for length, count in zip(lengths, counts, strict=True)]),
        pages=None if role == "ragged" else page_numbers(batch, rows, counts, device),
    )


def page_numbers(batch: ForwardBatch, rows: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """``[sum(counts)]`` int32 on the device: the first ``counts[i]`` pages of each of ``rows``, one after the other.

    Nothing waits for the device: how many there are is known on the host.
    """
    total, starts = sum(counts), [0, *accumulate(counts)][:-1]
    index = _upload(torch.tensor([list(rows), list(counts), starts], dtype=torch.int64), device)
    order = torch.repeat_interleave(index[1], output_size=total)
    columns = torch.arange(total, device=device) - index[2][order]
    slots = batch.tables[index[0][order], columns * batch.page_size]
    return slots.div(batch.page_size, rounding_mode="floor").to(torch.int32)


def _token_rows(batch: ForwardBatch, rows: Sequence[int], device: torch.device) -> slice | Tensor:
    """Where the new tokens of ``rows`` are: a range if they follow one another, as they mostly do."""
    first = [0, *accumulate(batch.query_lens)]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(first[rows[0]], first[rows[-1] + 1])
    tokens = [token for row in rows for token in range(first[row], first[row + 1])]
    return _upload(torch.tensor(tokens, dtype=torch.int64), device)


def _indptr(counts: Sequence[int]) -> Tensor:
    return _host([0, *accumulate(counts)])


def _host(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _upload(packed: Tensor, device: torch.device) -> Tensor:
    """One copy to the device, which the host does not wait for."""
    if device.type == "cuda":
        packed = packed.pin_memory()
    return packed.to(device, non_blocking=True)
