"""The plan of a step's attention, computed once for all layers.

The step's sequences form two groups. Those with one new token (decodes) are computed together, padded to the longest
context. Those with more are computed one by one: first over the pool, then over themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sglang_plug import ForwardBatch, upload

NEVER = float("-inf")


@dataclass(slots=True)
class DecodePlan:
    """Sequences with one new token.

    The first ``shared`` tokens of every context are the same slots; the rest is padded.
    """

    rows: Tensor | None
    """Rows among the step's tokens, ``[B]``; ``None``: all, in order."""
    shared: Tensor | None
    """Slots that begin every context, ``[P]``."""
    table: Tensor
    """Slots of the rest, ``[B * longest]``."""
    lengths: Tensor
    """Lengths of the rest, ``[B]``."""
    longest: int
    ragged: bool
    first: int | None = None
    """First of ``table``'s slots if they are contiguous, so that no gather is needed."""
    _masks: dict[tuple[int | None, torch.dtype, int], Tensor | None] = field(default_factory=dict)

    def gather(self, pool: Tensor) -> Tensor:
        """Gather rows of ``pool`` ``[slots, kv_heads, dim]`` for ``table``: ``[B, longest, kv_heads, dim]``."""
        if self.first is not None:
            return pool[None, self.first : self.first + self.longest]
        return pool.index_select(0, self.table).view(-1, self.longest, *pool.shape[1:])

    def mask(self, window: int | None, dtype: torch.dtype, before: int = 0) -> Tensor | None:
        """Build ``[B, 1, 1, before + longest]``: 0 for visible tokens, minus infinity elsewhere; ``None``: all visible.

        ``before`` tokens of the common prefix precede each sequence's rest.
        """
        if window is not None and window >= before + self.longest:
            window = None
        key = window, dtype, before
        if key not in self._masks:
            self._masks[key] = self._mask(*key)
        return self._masks[key]

    def _mask(self, window: int | None, dtype: torch.dtype, before: int) -> Tensor | None:
        if not self.ragged and window is None:
            return None
        positions = torch.arange(before + self.longest, device=self.lengths.device)
        lengths = self.lengths[:, None] + before
        hidden = positions >= lengths
        if window is not None:
            hidden |= positions < lengths - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
        return mask.masked_fill_(hidden, NEVER)[:, None, None]


@dataclass(slots=True)
class ExtendPlan:
    """A sequence with several new tokens."""

    start: int
    """First row among the step's tokens."""
    count: int
    prefix: Tensor | None
    """Slots of the tokens already in the pool, ``[kv_len - count]``; ``None`` if there are none."""
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, device: torch.device) -> Tensor:
        """Build ``[count, kv_len]``: True if a new token attends to a token of the context."""
        if window not in self._masks:
            before = 0 if self.prefix is None else len(self.prefix)
            query = torch.arange(before, before + self.count, device=device)[:, None]
            key = torch.arange(before + self.count, device=device)
            mask = key <= query
            self._masks[window] = mask if window is None else mask & (key > query - window)
        return self._masks[window]


@dataclass(slots=True)
class Plan:
    """The two groups of one step."""

    decode: DecodePlan | None
    extends: list[ExtendPlan]


def plan(batch: ForwardBatch, *, min_shared: int) -> Plan:
    """Plan the step's sequences. Decodes are split into a common prefix and the rest.

    A prefix has at least ``min_shared`` tokens, and is detected only on a CPU: that reads the tables' values, which
    would synchronise other devices.
    """
    decodes, extends, start = [], [], 0
    for row, (count, length) in enumerate(zip(batch.query_lens, batch.kv_lens, strict=True)):
        if count == 1 and batch.kv is not None:
            decodes.append((row, start, length))
        else:
            prefix = batch.tables[row, : length - count] if length > count else None
            extends.append(ExtendPlan(start, count, prefix))
        start += count
    return Plan(_decode(batch, decodes, min_shared, everything=not extends) if decodes else None, extends)


def _decode(batch: ForwardBatch, decodes: list[tuple[int, int, int]], min_shared: int, everything: bool) -> DecodePlan:
    device = batch.tables.device
    lengths = [length for _, _, length in decodes]
    tables = batch.tables
    if not everything:
        tables = tables.index_select(0, upload([row for row, _, _ in decodes], torch.int64, device))
    looks = device.type == "cpu"
    shared = _common(tables, min(lengths) - 1, min_shared) if looks and len(decodes) > 1 else 0
    longest = max(lengths) - shared
    table = tables[:, shared : shared + longest].reshape(-1)
    return DecodePlan(
        rows=None if everything else upload([start for _, start, _ in decodes], torch.int64, device),
        shared=tables[0, :shared].contiguous() if shared else None,
        table=table,
        lengths=upload(lengths, torch.int64, device) - shared,
        longest=longest,
        ragged=min(lengths) != max(lengths),
        first=_run_start(table) if len(decodes) == 1 and looks else None,
    )


def _run_start(table: Tensor) -> int | None:
    """Return the first slot of ``table`` if the slots are consecutive."""
    start = int(table[0])
    return start if bool((table == torch.arange(start, start + len(table))).all()) else None


def _common(tables: Tensor, max_length: int, minimum: int) -> int:
    """Count the leading slots that all ``tables`` share; 0 if they are less than ``minimum``."""
    if max_length < minimum or not bool((tables[:, minimum - 1] == tables[0, minimum - 1]).all()):
        return 0
    same = (tables[:, :max_length] == tables[0, :max_length]).all(dim=0)
    common = max_length if bool(same.all()) else int(same.int().argmin())
    return common if common >= minimum else 0
