"""The model runner of one device: builds the tensors of a step, runs the model and the sampler."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import accumulate
from types import MappingProxyType
from typing import overload

import torch
from torch import Tensor

from sglang_plug.contracts.extension.execution import DeviceTokens, StepLogits
from sglang_plug.contracts.extension.sampling_phases import PendingMask, TokenDecision
from sglang_plug.contracts.model.batch import ForwardBatch, KVPool
from sglang_plug.contracts.request import TokenLogprob
from sglang_plug.engine.extensions.step_points import SamplingPoints
from sglang_plug.engine.messages.rank_messages import Ranks
from sglang_plug.engine.sampling.masks import begin_masks
from sglang_plug.engine.sampling.sampler import Sampler, all_greedy, results_of
from sglang_plug.engine.sequences.launched_step import DeferredSampling, LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.ops.host_device_copy import AsyncHostCopy, upload

from .executors import StepExecutors
from .prompt_results import NOTHING_YET, known_logprobs, pool_prompts
from .rank_components import RankComponents
from .step_batch import build_batch

NO_DECISIONS: Mapping[int, TokenDecision] = MappingProxyType({})
NO_DRAFTS: Mapping[int, tuple[int, ...]] = MappingProxyType({})


class Runner:
    """Runs steps with the model of ``components`` and a KV pool; holds no state of any request."""

    def __init__(
        self,
        components: RankComponents,
        kv: KVPool | None,
        sampling: SamplingPoints,
        *,
        ranks: Ranks | None = None,
        executors: StepExecutors | None = None,
    ) -> None:
        self.components = components
        self.kv = kv
        self.ranks = ranks
        self.backend = components.backend
        self.device = components.device
        self.extensions = components.extensions
        self.sampling = sampling
        self.sampler = Sampler(components.kernels)
        self.executors = StepExecutors() if executors is None else executors

    @property
    def asynchronous(self) -> bool:
        """True if the device works asynchronously: a step can be queued while another one runs."""
        return self.device.type == "cuda"

    def run(self, chunks: Ordered[ScheduledChunk]) -> list[StepResult]:
        """Compute the chunks' tokens; sample one where a chunk is complete. Returns one result for each chunk."""
        return self.launch(chunks).results()

    @overload
    def launch(self, chunks: Ordered[ScheduledChunk], before: None = None) -> LaunchedStep: ...

    @overload
    def launch(
        self, chunks: Ordered[ScheduledChunk], before: LaunchedStep | None
    ) -> LaunchedStep | DeferredSampling: ...

    @torch.inference_mode()
    def launch(
        self, chunks: Ordered[ScheduledChunk], before: LaunchedStep | None = None
    ) -> LaunchedStep | DeferredSampling:
        """Queue a step on the device; wait for it only if prompts report log-probabilities or are pooled.

        Chunks that are planned ahead follow ``before``, the step queued last, and may take a token from it. If their
        outputs are constrained, their tokens are sampled once that step is committed.
        """
        drafted = any([chunk.drafts for chunk in chunks])
        complete = _complete(chunks, drafted) if _generates(chunks) else []
        sequences = [chunks[index].sequence for index in complete]
        deferred = before is not None and any([sequence.constrained for sequence in sequences])
        mask = None if deferred else self._begin_masks(sequences)
        device_tokens = None if before is None else before.tokens_for(chunks, self._upload)
        output, results = self._forward(chunks, complete, device_tokens, drafted)
        if output is None:
            return LaunchedStep([], None, lambda: results)
        if deferred:
            return DeferredSampling(partial(self._sample_deferred, output, complete, results))
        ahead = _ahead(chunks, complete, drafted)
        drafts = {index: chunk.drafts for index, chunk in enumerate(chunks) if chunk.drafts} if drafted else {}
        return self._sample(output, sequences, complete, mask, results, ahead, drafts)

    def _forward(
        self,
        chunks: Ordered[ScheduledChunk],
        complete: Ordered[int],
        device_tokens: DeviceTokens | None,
        drafted: bool,
    ) -> tuple[Tensor | StepLogits | None, list[StepResult]]:
        """Queue the forward pass; ``drafted``: some of the chunks have drafts.

        Returns the logits of the chunks at ``complete`` (``StepLogits`` if an executor computed them, ``None`` if
        ``complete`` is empty), and the results known so far of each chunk.
        """
        for before_forward in self.extensions.before_forward:
            before_forward(chunks)
        decoded = self.executors.decode(self.components.model, chunks, device_tokens)
        if decoded is not None:
            self._after_forward(chunks)
            return decoded, [NOTHING_YET] * len(chunks)
        ends = list(accumulate([chunk.width if drafted else chunk.count for chunk in chunks]))
        own = [end - len(chunk.drafts) for chunk, end in zip(chunks, ends, strict=True)] if drafted else ends
        rows = [own[index] - 1 for index in complete]
        if drafted:  # an index appears once for each row of its chunk
            rows = [row for index in dict.fromkeys(complete) for row in range(own[index] - 1, ends[index])]
        generates = _generates(chunks)
        reads_all = not generates or any([chunk.sequence.request.logprobs is not None for chunk in chunks])
        batch = self.build(chunks, device_tokens, None if reads_all else rows)
        if self.ranks is not None:
            extension_steps = self.extensions.rank_steps(chunks, batch)
            self.ranks.step(chunks, batch, known=device_tokens is None, extensions=extension_steps)
        self.backend.plan(batch)
        hidden = self._hidden(chunks, batch)
        self._after_forward(chunks)
        results = [
            NOTHING_YET
            if chunk.sequence.request.logprobs is None
            else known_logprobs(partial(self._head, hidden), chunk, chunk.sequence.request.logprobs, end)
            for chunk, end in zip(chunks, own, strict=True)
        ]
        if not generates:
            pool_prompts(self.components.model, hidden, chunks, ends, results)
        return self._head(hidden, rows) if complete else None, results

    def _after_forward(self, chunks: Ordered[ScheduledChunk]) -> None:
        for after_forward in self.extensions.after_forward:
            after_forward(chunks)

    def _hidden(self, chunks: Ordered[ScheduledChunk], batch: ForwardBatch) -> Tensor:
        """Compute ``[T, hidden]`` of a planned step; an executor's is valid until the next step is queued."""
        if self.extensions.context and (contexts := self.extensions.step_contexts(chunks, batch.query_lens)):
            with ExitStack() as stack:
                for context in contexts:
                    stack.enter_context(context)
                return self._eager(batch)
        executed = self.executors.hidden(self.components.model, batch)
        return self._eager(batch) if executed is None else executed

    def _eager(self, batch: ForwardBatch) -> Tensor:
        """Compute ``[T, hidden]`` of a planned step operation by operation."""
        hidden: Tensor = self.components.model(batch)
        return hidden

    def _head(self, hidden: Tensor, rows: list[int] | slice) -> Tensor:
        """Compute the logits of ``rows`` of the step's hidden states."""
        if self.ranks is not None:
            self.ranks.head(rows)
        if isinstance(rows, slice):
            return self.components.model.head(hidden[rows])
        return self.components.model.head(hidden if len(rows) == len(hidden) else hidden[self._upload(rows)])

    def _begin_masks(self, sequences: Ordered[Sequence]) -> PendingMask | None:
        """Begin to fill the token masks of ``sequences``; ``None`` if none of them has one."""
        begins = self.sampling.allowed
        return begin_masks(begins, sequences, asynchronous=self.asynchronous) if begins else None

    def _upload(self, numbers: list[int]) -> Tensor:
        return upload(numbers, torch.int64, self.device)

    @torch.inference_mode()
    def _sample_deferred(
        self,
        output: Tensor | StepLogits,
        complete: Ordered[int],
        results: list[StepResult],
        chunks: Ordered[ScheduledChunk],
    ) -> LaunchedStep:
        """Sample for those chunks at ``complete`` that still need a token, after the previous step has been committed.

        That commit may have ended sequences, or given them forced tokens.
        """
        rows = [row for row, index in enumerate(complete) if chunks[index].complete and not chunks[index].dropped]
        if not rows:
            return LaunchedStep([], None, lambda: results)
        if len(rows) < len(complete):
            output = output[self._upload(rows)] if isinstance(output, Tensor) else output.part(rows)
            complete = [complete[row] for row in rows]
        sequences = [chunks[index].sequence for index in complete]
        return self._sample(output, sequences, complete, self._begin_masks(sequences), results, [0] * len(rows))

    def _sample(
        self,
        output: Tensor | StepLogits,
        sequences: list[Sequence],
        complete: Ordered[int],
        mask: PendingMask | None,
        results: list[StepResult],
        ahead: Ordered[int],
        drafts: Mapping[int, tuple[int, ...]] = NO_DRAFTS,
    ) -> LaunchedStep:
        """Sample a token for each of ``sequences``, whose indices in ``results`` are ``complete``.

        ``drafts`` maps an index to the chunk's drafts; its sequence appears once more for each of them.

        ``output`` are their logits, or the result of an executor; ``results`` are the results known so far;
        ``ahead`` is, for each, the number of tokens before the one to sample that the sequence does not have yet.
        """
        allowed = None if mask is None else mask.result()
        if not isinstance(output, Tensor) and allowed is None and all_greedy(sequences):
            tokens = output.tokens()
            launched = LaunchedStep(sequences, tokens, partial(results_of, AsyncHostCopy.of(tokens)))
        else:
            logits = output if isinstance(output, Tensor) else output.logits()
            launched = self.sampler.sample(logits, sequences, allowed, ahead=ahead)
        read = partial(self._sampled, launched, complete, results, drafts)
        return LaunchedStep(launched.sequences, launched.tokens, read)

    def _sampled(
        self,
        launched: LaunchedStep,
        complete: Ordered[int],
        results: list[StepResult],
        drafts: Mapping[int, tuple[int, ...]],
    ) -> list[StepResult]:
        """Wait for the tokens of the ``launched`` step, and fill in their ``results``, whose indices are ``complete``.

        ``drafts`` maps an index to the chunk's drafts.
        """
        sampled, decisions = launched.results(), NO_DECISIONS
        if self.sampling.sampled:
            decisions = self.sampling.decisions(
                launched.sequences, [row.token for row in sampled if row.token is not None]
            )
        for row, (index, result) in enumerate(zip(complete, sampled, strict=True)):
            if drafts and row and complete[row - 1] == index:
                continue  # a row of a draft; handled with the chunk's first row
            known, results[index] = results[index], result
            if result.error is not None:
                continue
            if (decision := decisions.get(row)) is not None:
                if decision.error is not None:
                    results[index] = StepResult(error=str(decision.error), status=decision.error.status)
                    continue
                if decision.rejected:
                    results[index] = replace(known, rejected=True, finish=decision.finish)
                    continue
                result.forced, result.finish = decision.forced, decision.finish
            result.prompt_logprobs, result.forced_logprobs = known.prompt_logprobs, known.forced_logprobs
            if index in drafts:
                result.accepted_tokens = _accepted(drafts[index], sampled[row : row + 1 + len(drafts[index])])
        return results

    def build(
        self,
        chunks: Ordered[ScheduledChunk],
        device_tokens: DeviceTokens | None = None,
        output_rows: list[int] | None = None,
    ) -> ForwardBatch:
        """Build the tensors of a step.

        ``device_tokens`` holds the tokens that only the device knows, if any; ``output_rows`` are the rows whose hidden
        states are read, ``None`` if all are.
        """
        batch = build_batch(chunks, device_tokens, output_rows, self.components.page_size, self.kv, self.device)
        for prepare in self.extensions.prepare:
            prepare(chunks, batch)
        return batch


def _complete(chunks: Ordered[ScheduledChunk], drafted: bool) -> list[int]:
    """Return the indices of the chunks that a token is sampled for, each once, and once more per draft."""
    indices = [index for index, chunk in enumerate(chunks) if chunk.complete]
    if not drafted:
        return indices
    return [index for index in indices for _ in range(1 + len(chunks[index].drafts))]


def _ahead(chunks: Ordered[ScheduledChunk], complete: Ordered[int], drafted: bool) -> list[int]:
    """Return, for each token to sample, how many tokens precede it that its sequence does not have yet."""
    if not drafted:
        return [int(chunks[index].pending_on_device) for index in complete]
    counts: list[int] = []
    for chunk in chunks:
        if chunk.complete:
            pending_on_device = int(chunk.pending_on_device)
            counts += range(pending_on_device, pending_on_device + 1 + len(chunk.drafts))
    return counts


def _accepted(drafts: tuple[int, ...], sampled: Ordered[StepResult]) -> tuple[tuple[int, TokenLogprob | None], ...]:
    """Return the tokens after the first of ``sampled``, up to the first draft that differs from the sampled token.

    ``sampled`` has a result for the token before the drafts, and for each draft.
    """
    accepted: list[tuple[int, TokenLogprob | None]] = []
    for draft, before, result in zip(drafts, sampled[:-1], sampled[1:], strict=True):
        if before.token != draft or result.token is None or result.error is not None:
            break
        accepted.append((result.token, result.logprob))
    return tuple(accepted)


def _generates(chunks: Ordered[ScheduledChunk]) -> bool:
    """Report whether the step generates: an engine serves either generation or pooling tasks."""
    return chunks[0].sequence.request.task == "generate"
