"""What a step found, added to a sequence."""

from __future__ import annotations

from sglang_plug.request import DraftCounts, Finish, Output, TokenLogprob

from .sequence import Sequence
from .shares import Sampled, Share, Tally


def append(share: Share, result: Sampled, tally: Tally) -> Output:
    """Give the sequence of ``share``, which is complete, what was sampled for it, and what must follow; the news.

    Drafts that came true are computed by now, as far as the output goes.
    """
    sequence = share.sequence
    assert result.token is not None
    first = sequence.told == sequence.prompt_len
    logprobs: tuple[TokenLogprob, ...] = ()
    tally.forced_tokens += len(result.forced) + (sequence.generated if first else 0)
    if len(sequence.tokens) < sequence.limit:
        sequence.tokens.append(result.token)
        logprobs = () if result.logprob is None else (*sequence.forced_logprobs, result.logprob)
        sequence.forced_logprobs.clear()
    known = len(sequence.tokens) + (len(result.forced) if result.logprob is None else 0)
    sequence.tokens += result.forced
    sequence.latest = 1 + len(result.forced)
    finish = result.finish or sequence.finish
    if share.drafts:
        before = sequence.computed
        finish, more = _accept(sequence, result, finish)
        known, logprobs = len(sequence.tokens), logprobs + more
        _count(share, sequence.computed - before, tally)
    tokens = tuple(sequence.tokens[sequence.told : known])
    sequence.told = known
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


def _count(share: Share, accepted: int, tally: Tally) -> None:
    share.sequence.drafted += len(share.drafts)
    share.sequence.accepted += accepted
    tally.drafted_tokens += len(share.drafts)
    tally.accepted_tokens += accepted


def _accept(
    sequence: Sequence, result: Sampled, finish: Finish | None
) -> tuple[Finish | None, tuple[TokenLogprob, ...]]:
    """Append the tokens behind drafts that came true, until the output ends; each makes a draft a computed token."""
    logprobs = list[TokenLogprob]()
    for token, logprob in result.further:
        if finish is not None:
            break
        sequence.tokens.append(token)
        sequence.computed += 1
        if logprob is not None:
            logprobs.append(logprob)
        finish = sequence.finish
    return finish, tuple(logprobs)
