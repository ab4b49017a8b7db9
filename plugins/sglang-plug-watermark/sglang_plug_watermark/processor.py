"""Adds ``delta`` to the logits of green tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, send, upload

from .fields import WatermarkOptions
from .greenlist import FIRST, GOLDEN, MASK, SECOND, key_hash, threshold


def mixed(numbers: Tensor) -> Tensor:
    """Compute ``greenlist.mixed`` of int64 numbers; overflow of the products does not affect the lowest 32 bits."""
    numbers = numbers & MASK
    numbers = ((numbers ^ (numbers >> 16)) * FIRST) & MASK
    numbers = ((numbers ^ (numbers >> 13)) * SECOND) & MASK
    return numbers ^ (numbers >> 16)


class Watermark(LogitsProcessor):
    """Adds ``delta`` to the logits of the tokens that are green after the last token, computed on the device."""

    needs_tokens = True

    def __init__(self, settings: object, vocab_size: int, device: torch.device) -> None:
        super().__init__(settings, vocab_size, device)
        self._hashes = mixed(torch.arange(vocab_size, dtype=torch.int64, device=device))

    def prepare(self, request: ProcessorRequest) -> WatermarkOptions | None:
        """Return the watermark of a request; see ``LogitsProcessor.prepare``."""
        options: WatermarkOptions | None = request.fields.watermark
        return options

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return the batch of the rows with a watermark; see ``LogitsProcessor.batch``."""
        states: list[WatermarkOptions] = [row.state for row in rows]
        keys = [key_hash(self.settings.key if state.key is None else state.key) for state in states]
        columns = [keys, [threshold(state.gamma) for state in states], [row.tokens[-1] for row in rows]]
        key, limit, last = send(torch.tensor(columns, dtype=torch.int64), self.device).unbind()
        delta = upload([state.delta for state in states], torch.float32, self.device)
        return WatermarkBatch(self._hashes, key, limit, delta, last)


class WatermarkBatch(LogitsBatch):
    """Rows with a watermark and their last tokens.

    Args:
        hashes: ``[vocabulary]``: the hash of each token.
        key: ``[rows]``: the hash of each row's key; the next arguments have one entry per row, too.
        limit: hash below which a token is green.
        delta: added to the logits of green tokens.
        last: the last token of the sequence.
    """

    def __init__(self, hashes: Tensor, key: Tensor, limit: Tensor, delta: Tensor, last: Tensor) -> None:
        self._hashes, self._key, self._limit, self._delta, self._last = hashes, key, limit, delta, last

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Return the logits with a bias on the green tokens of each row."""
        before = mixed(self._key + self._last * GOLDEN)
        green = mixed(before[:, None] ^ self._hashes) < self._limit[:, None]
        return logits + green * self._delta[:, None]

    def append(self, tokens: Tensor) -> None:
        """Remember the last token of each row; -1 means that a row got none."""
        self._last = torch.where(tokens >= 0, tokens, self._last)

    def regroup(self, rows: Sequence[int], joining: LogitsBatch | None) -> LogitsBatch:
        """Return the batch of ``rows``, followed by those of ``joining``."""
        index = upload(rows, torch.int64, self._last.device)
        parts = [part.index_select(0, index) for part in self._parts()]
        if isinstance(joining, WatermarkBatch):
            parts = [torch.cat(pair) for pair in zip(parts, joining._parts(), strict=True)]
        return WatermarkBatch(self._hashes, *parts)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._key, self._limit, self._delta, self._last
