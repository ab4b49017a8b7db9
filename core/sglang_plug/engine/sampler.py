"""Logits to tokens and log-probabilities, vectorised over the batch.

Ten steps, each skipped when no row needs it:

1. log-probabilities of the model's own distribution, for rows that report them
2. logit bias
3. repetition, frequency and presence penalties
4. stop tokens forbidden before ``min_new_tokens``
5. tokens forbidden that a row's grammar does not allow; its mask knows of step 4
6. greedy rows take the most likely token; a batch of only these ends here
7. temperature
8. top-k, then top-p of what is left, then min-p
9. one number in [0, 1) per row, a function of the row's seed and position alone, picks the token
10. log-probabilities of the picked tokens and their alternatives
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_plug.kernels import TORCH, Kernels
from sglang_plug.request import TokenLogprob
from sglang_plug.transfer import Fetched, upload

from .logprobs import Reports, report
from .masks import Allowed
from .sampling_batch import SamplingBatch
from .sequence import Sequence

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that a device chooses, and their log-probabilities."""

    tokens: Tensor
    """``[rows]`` int64 on the device; -1 where the logits are not finite or nothing is allowed."""
    fetched: Fetched
    """The same on the host."""
    reported: tuple[int, ...]
    """Rows that report log-probabilities."""
    reports: Reports | None

    def read(self) -> tuple[list[int], list[TokenLogprob | None]]:
        """Both, for each row; waits for the device, as far as what ``draw`` queued and no further."""
        chosen: list[int] = self.fetched.read()[0].tolist()
        found: list[TokenLogprob | None] = [None] * len(chosen)
        if self.reports is not None:
            described = self.reports.read([max(0, chosen[row]) for row in self.reported])
            for row, one in zip(self.reported, described, strict=True):
                found[row] = one
        return chosen, found


class Sampler:
    """Chooses tokens. Keeps what does not change while the same sequences are sampled, of one batch at a time.

    Args:
        kernels: whose ``mask_logits`` and ``draw_tokens`` it works with.
    """

    def __init__(self, kernels: Kernels = TORCH) -> None:
        self._kernels = kernels
        self._batch: SamplingBatch | None = None

    def draw(
        self,
        logits: Tensor,
        sequences: Ordered[Sequence],
        allowed: Allowed | None = None,
        *,
        ahead: Ordered[int] | None = None,
    ) -> Drawn:
        """One token for each row of ``logits`` ``[rows, vocabulary]``, and its log-probability if asked for.

        A row whose logits are not finite, or of which nothing is ``allowed``, gets token -1. ``logits`` may be
        overwritten. Does not wait for the device; penalties know of the tokens as soon as they are drawn.

        Args:
            logits: on any device.
            sequences: one for each row; one with drafts for several.
            allowed: what grammars leave of the vocabulary.
            ahead: for each row how many tokens precede its own that the sequence does not hold yet: one that only the
                device knows, or drafts.
        """
        logits = logits.float().contiguous()
        ahead = [0] * len(sequences) if ahead is None else ahead
        batch = self._prepared(logits, sequences)
        logprobs = batch.reporting.of(logits).log_softmax(-1) if batch.reporting else None
        logits = batch.early_stops.apply(batch.penalties.apply(batch.bias.apply(logits)), ahead)
        if allowed is not None:
            logits = allowed.apply(logits, self._kernels.mask_logits)
        best = logits.max(-1)
        tokens = best.indices
        if batch.options is not None:
            numbers = [uniform_number(sequences[row], ahead[row]) for row in batch.drawn.places]
            uniform = upload(numbers, torch.float64, logits.device)
            picked = self._kernels.draw_tokens(batch.drawn.of(logits), batch.options, uniform)
            tokens = batch.drawn.put(picked, tokens)
        tokens = tokens.masked_fill((best.values - best.values).isnan(), -1)  # unless it is finite, in few launches
        batch.penalties.count(tokens)
        reports = None
        if logprobs is not None:
            reports = report(logprobs, batch.reporting.of(tokens).clamp(min=0), batch.reported)
        return Drawn(tokens, Fetched.of(tokens), batch.reporting.places, reports)

    def _prepared(self, logits: Tensor, sequences: Ordered[Sequence]) -> SamplingBatch:
        if self._batch is None or not self._batch.holds(sequences, logits):
            if self._batch is not None:
                self._batch.penalties.part_from(sequences)
            self._batch = None  # what it keeps is free before more is made
            self._batch = SamplingBatch(sequences, logits.shape[-1], logits.device)
        return self._batch


def takes_likeliest(sequences: Ordered[Sequence]) -> bool:
    """True if a ``Sampler``, without masks, would do nothing but take the most likely token of each row."""
    for one in sequences:
        params = one.request.params
        if not params.greedy or params.penalised or params.logit_bias or one.request.logprobs is not None:
            return False
        if one.generated < params.min_new_tokens and params.stop_token_ids:
            return False
    return True


def count(sequence: Sequence, tokens: Ordered[int]) -> None:
    """Let penalties know of tokens that come to an output; negative ones are none."""
    if sequence.counts is not None:
        for token in tokens:
            if token >= 0:
                sequence.counts[0, token] += 1


def uniform_number(sequence: Sequence, ahead: int = 0) -> float:
    """A number in [0, 1) from the seed and the position (SplitMix64, Steele et al. 2014).

    ``ahead`` tokens come before it that the sequence does not hold yet.
    """
    state = (sequence.seed + (sequence.generated + ahead + 1) * 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
