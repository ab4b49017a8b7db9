"""Adds the results of a step to the sequences that it computed."""

from __future__ import annotations

from sglang_plug.contracts.request import DraftCounts, Finish, Output, TokenLogprob

from .scheduled_chunk import ScheduledChunk, StepCounters, StepResult
from .sequence import Sequence


def append(chunk: ScheduledChunk, result: StepResult, counters: StepCounters) -> Output:
    """Append the sampled token and the forced tokens after it to the sequence of ``chunk``; return its new output.

    The chunk must be complete. Accepted drafts count as computed, up to the end of the output. ``result`` has no token
    if the output ends because the grammar rejected every possible next token.
    """
    sequence = chunk.sequence
    assert result.token is not None or result.finish is not None
    first = sequence.emitted_len == sequence.prompt_len
    logprobs: tuple[TokenLogprob, ...] = ()
    counters.forced_tokens += len(result.forced) + (sequence.generated if first else 0)
    if result.token is None:
        logprobs = tuple(sequence.forced_logprobs)
        sequence.forced_logprobs.clear()
    elif len(sequence.tokens) < sequence.limit:
        sequence.tokens.append(result.token)
        logprobs = () if result.logprob is None else (*sequence.forced_logprobs, result.logprob)
        sequence.forced_logprobs.clear()
    known = len(sequence.tokens) + (len(result.forced) if result.logprob is None else 0)
    sequence.tokens += result.forced
    sequence.last_step_len = 1 + len(result.forced)
    finish = result.finish or sequence.finish
    if chunk.drafts:
        before = sequence.computed
        finish, more = _accept(sequence, result, finish)
        known, logprobs = len(sequence.tokens), logprobs + more
        _count(chunk, sequence.computed - before, counters)
    tokens = tuple(sequence.tokens[sequence.emitted_len : known])
    sequence.emitted_len = known
    return Output(
        id=sequence.request.id,
        tokens=tokens,
        finish=finish,
        cached_tokens=sequence.cached or 0,
        retractions=sequence.retractions,
        logprobs=logprobs,
        prompt_logprobs=tuple(sequence.prompt_logprobs) if first else (),
        drafts=DraftCounts(sequence.drafted, sequence.accepted) if sequence.drafted else None,
    )


def _count(chunk: ScheduledChunk, accepted: int, counters: StepCounters) -> None:
    chunk.sequence.drafted += len(chunk.drafts)
    chunk.sequence.accepted += accepted
    counters.drafted_tokens += len(chunk.drafts)
    counters.accepted_tokens += accepted


def _accept(
    sequence: Sequence, result: StepResult, finish: Finish | None
) -> tuple[Finish | None, tuple[TokenLogprob, ...]]:
    """Append the tokens after accepted drafts until the output ends; each one turns a draft into a computed token."""
    logprobs = list[TokenLogprob]()
    for token, logprob in result.accepted_tokens:
        if finish is not None:
            break
        sequence.tokens.append(token)
        sequence.computed += 1
        if logprob is not None:
            logprobs.append(logprob)
        finish = sequence.finish
    return finish, tuple(logprobs)
