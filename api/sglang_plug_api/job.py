"""What is asked of the engine for one sequence, and what comes back."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglang_plug import Constraint, DraftCounts, LogprobOptions, Media, Preamble, SamplingParams, TokenLogprob
from sglang_plug.specs import Task

from .sampling import Sampling

MAX_ID_CHARACTERS = 256


def new_id() -> str:
    """A request id: 32 hexadecimal digits."""
    return uuid.uuid4().hex


PROMPT_ONLY = Sampling(params=SamplingParams(max_new_tokens=0))
"""For pooling tasks, which generate nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One sequence to generate."""

    tokens: Sequence[int]
    sampling: Sampling = PROMPT_ONLY
    task: Task = "generate"
    id: str = field(default_factory=new_id)
    request: str = ""
    """What the caller calls the request that this is one sequence of; empty: ``id``."""
    media: tuple[Media, ...] = ()
    """What some of the tokens stand for."""
    logprobs: LogprobOptions | None = None
    constraint: Constraint | None = None
    constraint_field: str = ""
    """Where the request says it, for errors; empty: in a field named by its kind."""
    preamble: Preamble | None = None
    """What may stand before the part that ``constraint`` is about."""
    priority: int = 0
    salt: str = ""
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an output ended: ``stop``, ``length`` or ``abort``; ``matched`` is the stop token or string."""

    reason: str
    matched: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What came of a job since its last piece."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    ending: Ending | None
    completion_tokens: int
    """In all."""
    cached_tokens: int
    retractions: int
    values: tuple[float, ...] = ()
    """Of a pooling task."""
    drafts: DraftCounts | None = None
    """``None``: nothing was drafted."""


def joined(pieces: Sequence[Piece]) -> Piece:
    """Several pieces of one output as one."""
    last = pieces[-1]
    return Piece(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        logprobs=tuple(one for piece in pieces for one in piece.logprobs),
        prompt_logprobs=tuple(one for piece in pieces for one in piece.prompt_logprobs),
        ending=last.ending,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        retractions=last.retractions,
        values=last.values,
        drafts=last.drafts,
    )


def numbered(job: Job, index: int) -> Job:
    """Output ``index`` of a job with several: its own id, and its own seed if there is one."""
    if job.sampling.n == 1:
        return job
    params = job.sampling.params
    if params.seed is not None:
        params = replace(params, seed=params.seed + index)
    sampling = replace(job.sampling, params=params, n=1)
    return replace(job, id=f"{job.id}-{index}", request=job.request or job.id, sampling=sampling)
