"""``min_new_tokens``: stop tokens that may not come yet. For constrained outputs their grammars see to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, upload


@dataclass(frozen=True, slots=True)
class Minimum:
    """The minimum length of one request, and its stop tokens."""

    tokens: int
    """Output tokens before which none of ``stops`` may come."""
    stops: tuple[int, ...]


class MinNewTokens(LogitsProcessor):
    """Forbids stop tokens."""

    def prepare(self, request: ProcessorRequest) -> Minimum | None:
        """Return the minimum of a request; ``None`` if it has none, or if a grammar decides about stop tokens."""
        params = request.params
        if request.constrained or not params.stop_token_ids or params.min_new_tokens <= 0:
            return None
        return Minimum(params.min_new_tokens, params.stop_token_ids)

    def is_done(self, state: Minimum, generated: int) -> bool:
        """Report whether the output has its minimum length."""
        return generated >= state.tokens

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return a batch with the minimums of ``rows``."""
        return MinimumBatch([row.state for row in rows], self.vocab_size, self.device)


class MinimumBatch(LogitsBatch):
    """Offsets of forbidden tokens in the logits, brought to the device when a row gets its minimum."""

    def __init__(self, minimums: Sequence[Minimum], width: int, device: torch.device) -> None:
        self._minimums, self._width, self._device = minimums, width, device
        self._rows: list[int] = []
        self._offsets: Tensor | None = None

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Forbid the stop tokens of rows that have not reached their minimum."""
        rows = [row for row, minimum in enumerate(self._minimums) if generated[row] < minimum.tokens]
        if rows != self._rows:
            offsets = [row * self._width + token for row in rows for token in self._minimums[row].stops]
            self._rows, self._offsets = rows, upload(offsets, torch.int64, self._device)
        if rows and self._offsets is not None:
            logits.view(-1).index_fill_(0, self._offsets, -torch.inf)
        return logits
