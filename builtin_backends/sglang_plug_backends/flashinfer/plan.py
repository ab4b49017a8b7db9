"""Assignment of a step's sequences to kernels, and the index arrays that FlashInfer needs for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Literal

import torch
from torch import Tensor

from sglang_plug import ForwardBatch, pinned, send, upload

Role = Literal["decode", "paged", "ragged"]
"""Kernel roles: one new token each; several new tokens over pages of the pool; several with nothing cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The sequences of a step that one kernel serves. Index arrays are int32 and on the host unless noted."""

    role: Role
    tokens: slice | Tensor
    """Rows of the sequences' tokens in the step: a range, or ``[n]`` int64 on the device."""
    query_indptr: Tensor
    """``[rows + 1]``: where each sequence's new tokens begin among ``tokens``."""
    page_indptr: Tensor
    """``[rows + 1]``: where each sequence's pages begin in ``pages``."""
    last_page: Tensor
    """``[rows]``: tokens in each sequence's last page."""
    pages: Tensor | None
    """``[page_indptr[-1]]`` on the device; ``None`` where keys come from the step alone."""


def parts_of(batch: ForwardBatch, device: torch.device, *, ragged: bool = True) -> list[Part]:
    """Group the step's sequences by role, at most one part each: first the decodes, then the rest.

    With a pool, ``ragged`` allows sequences with nothing cached to attend to the step's own keys only.
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
    """Build the part of ``rows``, which are sequences of the batch in order."""
    size = batch.page_size
    lengths = [batch.kv_lens[row] for row in rows]
    counts = [-(-length // size) for length in lengths]
    query_indptr, page_indptr, last_page = _host(
        device,
        [0, *accumulate(batch.query_lens[row] for row in rows)],
        [0, *accumulate(counts)],
        [length - (count - 1) * size for length, count in zip(lengths, counts, strict=True)],
    )
    return Part(
        role=role,
        tokens=_token_rows(batch, rows, device),
        query_indptr=query_indptr,
        page_indptr=page_indptr,
        last_page=last_page,
        pages=None if role == "ragged" else page_numbers(batch, rows, counts, device),
    )


def page_numbers(batch: ForwardBatch, rows: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Return the first ``counts[i]`` pages of each of ``rows`` as one ``[sum(counts)]`` int32 tensor on the device.

    There is no device synchronisation: the sizes are known on the host.
    """
    slots = _first_slots(batch, rows, counts, device)
    size = batch.page_size
    return (slots if size == 1 else slots.div(size, rounding_mode="floor")).to(torch.int32)


def _first_slots(batch: ForwardBatch, rows: Sequence[int], counts: Sequence[int], device: torch.device) -> Tensor:
    """Return the first slot of each page, ``[sum(counts)]`` int64 on the device."""
    size, width, total = batch.page_size, batch.tables.shape[1], sum(counts)
    if len(rows) == 1:  # a single sequence waits for every kernel, and a view needs none
        return batch.tables[rows[0], : total * size : size]
    starts = [0, *accumulate(counts)][:-1]
    # number i of a row that starts at number s is entry (i - s) * size of the row's table
    first = [row * width - start * size for row, start in zip(rows, starts, strict=True)]
    index = send(torch.tensor([first, list(counts)], dtype=torch.int64), device)
    indices = index[0].repeat_interleave(index[1], output_size=total)
    indices += torch.arange(0, total * size, size, device=device)
    return batch.tables.flatten().index_select(0, indices)


def _token_rows(batch: ForwardBatch, rows: Sequence[int], device: torch.device) -> slice | Tensor:
    """Return the rows of the new tokens of ``rows``: a range if they are contiguous, as they usually are."""
    first = [0, *accumulate(batch.query_lens)]
    if rows[-1] - rows[0] == len(rows) - 1:
        return slice(first[rows[0]], first[rows[-1] + 1])
    tokens = [token for row in rows for token in range(first[row], first[row + 1])]
    return upload(tokens, torch.int64, device)


def _host(device: torch.device, *columns: Sequence[int]) -> Sequence[Tensor]:
    """Split one pinned host tensor into parts whose copies to ``device`` by FlashInfer are asynchronous."""
    packed = pinned(torch.tensor(list(chain(*columns)), dtype=torch.int32), device)
    return torch.split(packed, list(map(len, columns)))
