"""``logit_bias``: numbers that are added to the logits of single tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, upload

LARGEST = 1e30
"""Largest bias that is added: float32 holds it with room for arithmetic, and infinity would make NaN."""


class LogitBias(LogitsProcessor):
    """Adds each request's biases."""

    def prepare(self, request: ProcessorRequest) -> Mapping[int, float] | None:
        """Return the biases of a request, which do not change."""
        return request.params.logit_bias or None

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return a batch with the biases of ``rows`` on the device."""
        return BiasBatch([row.state for row in rows], self.vocab_size, self.device)


class BiasBatch(LogitsBatch):
    """Biases and their positions in the logits of all rows, one row after the other."""

    def __init__(self, biases: Sequence[Mapping[int, float]], width: int, device: torch.device) -> None:
        offsets = [row * width + token for row, bias in enumerate(biases) for token in bias]
        values = [max(-LARGEST, min(value, LARGEST)) for bias in biases for value in bias.values()]
        self._offsets = upload(offsets, torch.int64, device)
        self._values = upload(values, torch.float32, device)

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Add the biases to the logits."""
        logits.view(-1).index_add_(0, self._offsets, self._values)
        return logits
