"""The sampler: from logits to tokens and log-probabilities, vectorised over the batch.

Eight steps, each skipped when no row needs it:

1. log-probabilities of the model's own distribution, for rows that report them
2. logits processors in their order; the built-in ones are allowed tokens, biases, penalties, and stop tokens
   forbidden before ``min_new_tokens``
3. tokens that step extensions do not allow in a row are forbidden; a mask takes ``min_new_tokens`` into account
4. greedy rows take the most likely token; a batch of only these ends here
5. temperature
6. top-k, then top-p of what is left, then min-p
7. one number in [0, 1) per row, a function of only the row's seed and position, picks the token
8. log-probabilities of the picked tokens and their alternatives
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from sglang_plug.contracts.extension.sampling_phases import AllowedTokens
from sglang_plug.contracts.model.kernels import TORCH, Kernels
from sglang_plug.contracts.request import LogprobOptions, RequestError
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.host_device_copy import AsyncHostCopy, send, upload
from sglang_plug.ops.sampling import SamplingOptions

from .logprobs import PendingLogprobs, queue_logprobs
from .masks import apply_mask
from .processor_batch import LastSampledTokens, ProcessorGroup, RowSelection, errors_of, groups_of

_MASK = (1 << 64) - 1
NO_ERRORS: Mapping[int, RequestError] = MappingProxyType({})
NOT_FINITE = "the model produced logits that are not finite (NaN or infinity)"


class SamplingBatch:
    """The sequences of a batch, with sampling options that do not change while the same sequences are in the batch.

    They are copied to the device once, in copies that the host does not wait for, and stay there.

    Args:
        sequences: in the order of the rows.
        width: number of tokens in the vocabulary.
        device: the device of the logits.
    """

    def __init__(self, sequences: Ordered[Sequence], width: int, device: torch.device) -> None:
        self.sequences = list(sequences)
        self.width = width
        self.device = device
        count = len(self.sequences)
        self.groups = groups_of(self.sequences, device)
        reporting = [row for row, sequence in enumerate(self.sequences) if sequence.request.logprobs is not None]
        self.reporting = RowSelection(reporting, count, device)
        self.reported = [self.sequences[row].request.logprobs or LogprobOptions() for row in reporting]
        sampled = [row for row, sequence in enumerate(self.sequences) if not sequence.request.params.greedy]
        self.sampled = RowSelection(sampled, count, device)
        self.options: SamplingOptions | None = None
        if sampled:
            params = [self.sequences[row].request.params for row in sampled]
            self.options = SamplingOptions.of(params, width, lambda tensor: send(tensor, device))

    def take_over(self, earlier: SamplingBatch, ahead: Ordered[int]) -> None:
        """Take over the logits processors' state of sequences that were also in the previous batch."""
        known = {group.loaded: group for group in earlier.groups}
        for group in self.groups:
            if (before := known.get(group.loaded)) is not None:
                group.take_over(before, ahead)

    def holds(self, sequences: Ordered[Sequence], logits: Tensor) -> bool:
        """Report whether the batch has exactly these sequences, in this order, and logits of this width and device."""
        return self.sequences == list(sequences) and (self.width, self.device) == (logits.shape[-1], logits.device)


class Sampler:
    """Samples tokens. Keeps the constant state of one batch while the same sequences are sampled.

    Args:
        kernels: provide ``mask_logits`` and ``sample_tokens``.
    """

    def __init__(self, kernels: Kernels = TORCH) -> None:
        self._kernels = kernels
        self._batch: SamplingBatch | None = None
        self._last: LastSampledTokens | None = None

    def sample(
        self,
        logits: Tensor,
        sequences: Ordered[Sequence],
        allowed: AllowedTokens | None = None,
        *,
        ahead: Ordered[int] | None = None,
    ) -> LaunchedStep:
        """Sample one token for each row of ``logits`` ``[rows, vocabulary]``, and its log-probability if requested.

        A row whose logits are not finite, or for which no token is ``allowed``, gets token -1 and an error. ``logits``
        may be overwritten. Does not wait for the device; logits processors receive the tokens as soon as they are
        sampled. The returned step has a result for each row.

        Args:
            logits: on any device.
            sequences: one for each row; one with drafts has several rows.
            allowed: the tokens that step extensions allow.
            ahead: for each row the number of tokens before its own that the sequence does not have yet: one that only
                the device knows, or drafts.
        """
        logits = logits.float().contiguous()
        ahead = [0] * len(sequences) if ahead is None else ahead
        batch = self._prepared(logits, sequences, ahead)
        logprobs = batch.reporting.of(logits).log_softmax(-1) if batch.reporting else None
        for group in batch.groups:
            logits = group.apply(logits, ahead, self._last)
        if allowed is not None:
            logits = apply_mask(allowed, logits, self._kernels.mask_logits)
        best = logits.max(-1)
        tokens = best.indices
        if batch.options is not None:
            numbers = [uniform_number(sequences[row], ahead[row]) for row in batch.sampled.indices]
            uniform = upload(numbers, torch.float64, logits.device)
            picked = self._kernels.sample_tokens(batch.sampled.of(logits), batch.options, uniform)
            tokens = batch.sampled.put(picked, tokens)
        # rows that are not finite have no token; the difference shows them in few kernel launches
        tokens = tokens.masked_fill((best.values - best.values).isnan(), -1)
        errors = NO_ERRORS
        if batch.groups:
            for group in batch.groups:
                group.append(tokens)
            errors = errors_of(batch.groups)
        if allowed is not None and allowed.errors:
            errors = {**errors, **allowed.errors}
        self._last = LastSampledTokens(batch.sequences, tokens)
        reports = None
        if logprobs is not None:
            reports = queue_logprobs(logprobs, batch.reporting.of(tokens).clamp(min=0), batch.reported)
        read = partial(results_of, AsyncHostCopy.of(tokens), errors, batch.reporting.indices, reports, batch.groups)
        return LaunchedStep(batch.sequences, tokens, read)

    def _prepared(self, logits: Tensor, sequences: Ordered[Sequence], ahead: Ordered[int]) -> SamplingBatch:
        if self._batch is None or not self._batch.holds(sequences, logits):
            earlier, self._batch = self._batch, None
            batch = SamplingBatch(sequences, logits.shape[-1], logits.device)
            if earlier is not None and earlier.groups and batch.groups:
                batch.take_over(earlier, ahead)
            self._batch = batch
        return self._batch


def results_of(
    tokens: AsyncHostCopy,
    errors: Mapping[int, RequestError] = NO_ERRORS,
    reported: Ordered[int] = (),
    reports: PendingLogprobs | None = None,
    groups: Ordered[ProcessorGroup] = (),
) -> list[StepResult]:
    """Return a result for each row of ``tokens``; waits only for the work that was queued on the device before them.

    Args:
        tokens: ``[rows]`` int64; -1 where there is none.
        errors: maps a row to the reason why its token is not valid.
        reported: rows that report log-probabilities.
        reports: their log-probabilities.
        groups: the logits processors of the rows.
    """
    chosen: list[int] = tokens.read()[0].tolist()
    results = [
        StepResult(token) if token >= 0 else StepResult(token, error=_not_finite(row, groups))
        for row, token in enumerate(chosen)
    ]
    if reports is not None:
        described = reports.read([max(0, chosen[row]) for row in reported])
        for row, logprob in zip(reported, described, strict=True):
            results[row].logprob = logprob
    for row, error in errors.items():
        results[row].error, results[row].status = str(error), error.status
    return results


def _not_finite(row: int, groups: Ordered[ProcessorGroup]) -> str:
    """Return the error of a row without a token, which names the logits processors that may be the reason."""
    names = [str(group.loaded.component) for group in groups if any(member.index == row for member in group.members)]
    return f"{NOT_FINITE}, or a logits processor left no token: {', '.join(names)}" if names else NOT_FINITE


def all_greedy(sequences: Ordered[Sequence]) -> bool:
    """Report whether a ``Sampler`` without masks would only take the most likely token of each row."""
    for sequence in sequences:
        if not sequence.request.params.greedy or sequence.request.logprobs is not None:
            return False
        processors = sequence.sampling.processors
        if processors and not all([use.changes_nothing(sequence.generated) for use in processors]):
            return False
    return True


def uniform_number(sequence: Sequence, ahead: int = 0) -> float:
    """Return a number in [0, 1) from the seed and the position (SplitMix64, Steele et al. 2014).

    ``ahead`` tokens come before the position that the sequence does not have yet. Each token that was rejected at the
    position leads to another number: the final token is distributed as if the mask had been right.
    """
    state = (sequence.sampling.seed + (sequence.generated + ahead + 1) * 0x9E3779B97F4A7C15) & _MASK
    state = (state + sequence.sampling.rejections * 0xD1342543DE82EF95) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((state ^ (state >> 31)) >> 11) / (1 << 53)
