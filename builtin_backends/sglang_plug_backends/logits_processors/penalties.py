"""``repetition_penalty``, ``frequency_penalty`` and ``presence_penalty``.

The repetition penalty (Keskar et al. 2019) divides positive logits of tokens that occur in the prompt or the output,
and multiplies negative ones. The other two are OpenAI's: a number is subtracted for each time that a token occurs in
the output, and one if it occurs there at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, SamplingParams, send, upload

SMALLEST_PENALTY = 1e-20
"""Smallest penalty by which a logit can be divided in float32."""


class Penalties(LogitsProcessor):
    """Applies the three penalties; the number of times that each token has occurred is kept on the device."""

    needs_tokens = True

    def prepare(self, request: ProcessorRequest) -> SamplingParams | None:
        """Return the parameters if any of them is a penalty."""
        params = request.params
        is_used = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0 or params.repetition_penalty != 1.0
        return params if is_used else None

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return a batch with the penalties and token counts of ``rows`` on the device."""
        columns = [
            [max(row.state.repetition_penalty, SMALLEST_PENALTY) for row in rows],
            [row.state.frequency_penalty for row in rows],
            [row.state.presence_penalty for row in rows],
        ]
        numbers = send(torch.tensor(columns, dtype=torch.float32), self.device)
        return PenaltyBatch(numbers, torch.stack([self._counts(row) for row in rows]))

    def _counts(self, row: LogitsRow) -> Tensor:
        """Count each token in the output and in the prompt: ``[2, vocabulary]``."""
        tokens = upload(row.tokens, torch.int64, self.device)
        counts = torch.zeros(2, self.vocab_size, dtype=torch.float32, device=self.device)
        for part_counts, part in zip(counts, (tokens[row.prompt_len :], tokens[: row.prompt_len]), strict=True):
            part_counts.index_add_(0, part, torch.ones(len(part), dtype=torch.float32, device=self.device))
        return counts


class PenaltyBatch(LogitsBatch):
    """Penalties and counts of some rows.

    Args:
        numbers: ``[3, rows]`` repetition, frequency and presence penalties.
        counts: ``[rows, 2, vocabulary]`` how often each token occurs in the output and in the prompt.
    """

    def __init__(self, numbers: Tensor, counts: Tensor) -> None:
        self._numbers, self._counts = numbers, counts

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Apply the three penalties to the logits."""
        repetition, frequency, presence = self._numbers[:, :, None].unbind()
        output, occurred = self._counts[:, 0], self._counts.sum(1) > 0
        logits = torch.where(occurred, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
        return logits - output * frequency - (output > 0) * presence

    def append(self, tokens: Tensor) -> None:
        """Count one token for each row; a negative number is no token."""
        tokens = tokens[:, None]
        self._counts[:, 0].scatter_add_(1, tokens.clamp(min=0), (tokens >= 0).to(self._counts.dtype))

    def regroup(self, rows: Sequence[int], joining: LogitsBatch | None) -> LogitsBatch:
        """Return ``rows``, then those of ``joining``, with their counts."""
        index = upload(rows, torch.int64, self._counts.device)
        numbers, counts = self._numbers.index_select(1, index), self._counts.index_select(0, index)
        if joining is None:
            return PenaltyBatch(numbers, counts)
        assert isinstance(joining, PenaltyBatch)
        return PenaltyBatch(torch.cat([numbers, joining._numbers], 1), torch.cat([counts, joining._counts]))
