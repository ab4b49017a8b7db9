"""``allowed_token_ids``: the only tokens that an output may consist of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sglang_plug import LogitsBatch, LogitsProcessor, LogitsRow, ProcessorRequest, upload

from .fields import AllowedTokensFields


class AllowedTokens(LogitsProcessor):
    """Forbids all tokens but those that a request allows, stop tokens included."""

    def prepare(self, request: ProcessorRequest) -> tuple[int, ...] | None:
        """Return the allowed tokens of a request. Raises ``ValueError`` if there may be none in some step."""
        fields = request.fields
        assert isinstance(fields, AllowedTokensFields)
        if fields.allowed_token_ids is None:
            return None
        allowed = tuple(sorted(fields.allowed_token_ids))
        if allowed[-1] >= self.vocab_size:
            raise ValueError(
                f"allowed_token_ids: token id {allowed[-1]} is not in the vocabulary of {self.vocab_size} tokens"
            )
        if request.constrained:
            raise ValueError(
                "allowed_token_ids cannot be combined with a constraint (response_format, regex, ebnf, ...)"
            )
        params = request.params
        if params.min_new_tokens > 0 and set(params.stop_token_ids).issuperset(allowed):
            raise ValueError("allowed_token_ids: min_new_tokens needs a token that does not end the output")
        return allowed

    def batch(self, rows: Sequence[LogitsRow]) -> LogitsBatch:
        """Return a batch with the allowed tokens of ``rows`` on the device."""
        return AllowedBatch([row.state for row in rows], self.vocab_size, self.device)


class AllowedBatch(LogitsBatch):
    """Positions of allowed tokens in the logits of all rows, one row after the other."""

    def __init__(self, allowed: Sequence[Sequence[int]], width: int, device: torch.device) -> None:
        offsets = [row * width + token for row, tokens in enumerate(allowed) for token in tokens]
        self._offsets = upload(offsets, torch.int64, device)

    def apply(self, logits: Tensor, generated: Sequence[int]) -> Tensor:
        """Return logits that are minus infinity but for allowed tokens."""
        kept = logits.view(-1).index_select(0, self._offsets)
        masked = torch.full_like(logits, -torch.inf)
        masked.view(-1).index_copy_(0, self._offsets, kept)
        return masked
