"""The outputs that the results of a step add to its sequences."""

from __future__ import annotations

from sglang_plug.contracts.request import Finish, Output, TokenLogprob

from .scheduled_chunk import ScheduledChunk, StepCounters, StepResult
from .sequence import Sequence


def failed_output(sequence: Sequence, message: str, status: int = 500) -> Output:
    """Return the last output of a request that ends with an error."""
    return Output(id=sequence.request.id, finish=Finish("error", message=message, status=status))


def pooled_output(sequence: Sequence, values: tuple[float, ...]) -> Output:
    """Return the only output of a pooling task."""
    cached = sequence.service.cached or 0
    return Output(id=sequence.request.id, finish=Finish("stop"), cached_tokens=cached, values=values)


def append(chunk: ScheduledChunk, result: StepResult, counters: StepCounters) -> Output:
    """Append the sampled token and the forced tokens after it to the sequence of ``chunk``; return its new output.

    The chunk must be complete. Accepted drafts count as computed, up to the end of the output. ``result`` has no token
    if the output ends because every possible next token was rejected.
    """
    sequence = chunk.sequence
    assert result.token is not None or result.finish is not None
    first = sequence.output.emitted_len == sequence.prompt_len
    logprobs: tuple[TokenLogprob, ...] = ()
    counters.forced_tokens += len(result.forced) + (sequence.generated if first else 0)
    if result.token is None:
        logprobs = tuple(sequence.output.forced_logprobs)
        sequence.output.forced_logprobs.clear()
    elif len(sequence.tokens) < sequence.limit:
        sequence.tokens.append(result.token)
        sequence.sampling.rejections = 0
        logprobs = () if result.logprob is None else (*sequence.output.forced_logprobs, result.logprob)
        sequence.output.forced_logprobs.clear()
    known = len(sequence.tokens) + (len(result.forced) if result.logprob is None else 0)
    sequence.tokens += result.forced
    sequence.last_step_len = 1 + len(result.forced)
    finish = result.finish or sequence.finish
    if chunk.drafts:
        before = sequence.computed
        finish, more = _accept(sequence, result, finish)
        known, logprobs = len(sequence.tokens), logprobs + more
        counters.drafted_tokens += len(chunk.drafts)
        counters.accepted_tokens += sequence.computed - before
    tokens = tuple(sequence.tokens[sequence.output.emitted_len : known])
    sequence.output.emitted_len = known
    return Output(
        id=sequence.request.id,
        tokens=tokens,
        finish=finish,
        cached_tokens=sequence.service.cached or 0,
        retractions=sequence.service.retractions,
        logprobs=logprobs,
        prompt_logprobs=tuple(sequence.output.prompt_logprobs) if first else (),
    )


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
