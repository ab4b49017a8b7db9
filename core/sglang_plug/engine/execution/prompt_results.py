"""The results that hidden states of prompts give besides tokens: log-probabilities of known tokens, and pooling."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ordered

import torch
from torch import Tensor

from sglang_plug.contracts.model.model import Model
from sglang_plug.contracts.request import LogprobOptions, TokenLogprob
from sglang_plug.engine.sampling.logprobs import logprobs_of
from sglang_plug.engine.sampling.sampler import NOT_FINITE
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.ops.host_device_copy import AsyncHostCopy

HEAD_ROWS = 256
"""Largest number of prompt rows whose logits are in memory at once."""
NOTHING_YET = StepResult()

Head = Callable[[slice], Tensor]
"""Computes the logits of rows of a step's hidden states."""


def known_logprobs(head: Head, chunk: ScheduledChunk, options: LogprobOptions, end: int) -> StepResult:
    """Compute the requested log-probabilities of known tokens that the hidden states of ``chunk`` predict.

    These are the prompt's tokens and forced ones. ``end`` is the row after the chunk's last.
    """
    sequence = chunk.sequence
    if chunk.ahead:
        return NOTHING_YET
    prompt: list[TokenLogprob] = []
    if options.start >= 0:
        first = options.start + len(sequence.output.prompt_logprobs)
        if first == 0:
            prompt.append(TokenLogprob(sequence.tokens[0], None))
            first = 1
        prompt += _logprobs(head, chunk, options, end, first, sequence.prompt_len)
    first = sequence.output.emitted_len + len(sequence.output.forced_logprobs)
    forced = _logprobs(head, chunk, options, end, first, len(sequence.tokens))
    return StepResult(prompt_logprobs=tuple(prompt), forced_logprobs=tuple(forced))


def _logprobs(
    head: Head, chunk: ScheduledChunk, options: LogprobOptions, end: int, first: int, last: int
) -> list[TokenLogprob]:
    """Compute log-probabilities of the tokens from ``first`` to before ``last`` that ``chunk`` predicts.

    The state at position ``p`` predicts the token at ``p + 1``.
    """
    sequence = chunk.sequence
    last = min(sequence.computed + chunk.count + 1, last)
    row = end - chunk.count - sequence.computed - 1  # hidden row of the state that predicts position p: row + p
    reports: list[TokenLogprob] = []
    for start in range(first, last, HEAD_ROWS):
        stop = min(start + HEAD_ROWS, last)
        logprobs = head(slice(row + start, row + stop)).float().log_softmax(-1)
        reports += logprobs_of(logprobs, sequence.tokens[start:stop], [options] * (stop - start))
    return reports


def pool_prompts(
    model: Model, hidden: Tensor, chunks: Ordered[ScheduledChunk], ends: Ordered[int], results: list[StepResult]
) -> None:
    """Fill in the results of pooling tasks whose prompts are complete; ``ends``: the row after each chunk's last."""
    done = [index for index, chunk in enumerate(chunks) if chunk.complete]
    if not done:
        return
    counts = [chunks[index].count for index in done]
    if len(done) < len(chunks):
        hidden = torch.cat([hidden[ends[index] - chunks[index].count : ends[index]] for index in done])
    pooled = model.pool(hidden, counts)
    values, finite = AsyncHostCopy.of(pooled, pooled.isfinite().all(-1)).read()
    for index, row, is_finite in zip(done, values.tolist(), finite.tolist(), strict=True):
        results[index] = StepResult(values=tuple(row)) if is_finite else StepResult(error=NOT_FINITE)
