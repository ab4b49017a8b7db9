"""Applies the results of a step to its sequences."""

from __future__ import annotations

from sglang_plug.contracts.request import Output
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.engine.sequences.step_outputs import append, pooled_output

from .scheduler import Scheduler


class StepCommitter:
    """Advances the sequences of a step, and ends the requests that its results finish.

    Args:
        scheduler: has planned the step.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def commit(self, chunks: list[ScheduledChunk], results: list[StepResult]) -> list[Output]:
        """Advance every sequence, append sampled tokens, end finished requests; return the new outputs.

        Dropped chunks have no output.
        """
        scheduler = self._scheduler
        outputs = []
        scheduler.accounting.begin_commit(chunks, has_prompts=scheduler.counters.has_prompts)
        for chunk, result in zip(chunks, results, strict=True):
            sequence = chunk.sequence
            if chunk.dropped:
                continue
            if result.error is not None:
                outputs.append(scheduler.fail(sequence, result.error, result.status))
                continue
            prefilling = chunk.prefilling
            sequence.computed += chunk.count
            sequence.output.prompt_logprobs.extend(result.prompt_logprobs)
            sequence.output.forced_logprobs.extend(result.forced_logprobs)
            scheduler.allocator.committed(sequence, prefilling=prefilling)
            if result.values is not None:
                scheduler.finish(sequence)
                outputs.append(pooled_output(sequence, result.values))
                continue
            if result.rejected and result.finish is None:
                sequence.sampling.rejections += 1
                scheduler.restart(sequence)
                continue
            if result.token is None and result.finish is None:
                continue
            outputs.append(self._append(chunk, result))
        scheduler.accounting.end_commit(chunks, outputs)
        return outputs

    def _append(self, chunk: ScheduledChunk, result: StepResult) -> Output:
        """Return the output of a complete chunk; slots of rejected drafts are freed."""
        scheduler, sequence = self._scheduler, chunk.sequence
        before = sequence.computed
        output = append(chunk, result, scheduler.counters)
        if chunk.drafts:
            if scheduler.pool.shrink(sequence.slots, sequence.computed):
                sequence.slot_version += 1
            for verified in scheduler.requests.verified:
                verified(sequence, len(chunk.drafts), sequence.computed - before)
        for extend in scheduler.requests.output:
            output = extend(sequence, output)
            if not isinstance(output, Output):
                owner = scheduler.requests.names.of(extend)
                raise TypeError(f"{owner}: output() returned {type(output).__name__}, not an Output")
        if output.finish is not None:
            scheduler.finish(sequence)
        return output
