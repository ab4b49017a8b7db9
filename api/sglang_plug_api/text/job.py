"""A job of the engine, which generates one sequence, and the pieces of its output."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sglang_plug import Constraint, DraftCounts, LogprobOptions, Media, ReasoningPrefix, SamplingParams, TokenLogprob
from sglang_plug.plugins.specs import Task
from sglang_plug_api.http.callers import Caller, current_caller

from .sampling import Sampling
from .service_terms import ServiceTerms, current_terms

MAX_ID_CHARACTERS = 256


def new_id() -> str:
    """Return a new request id: 32 hexadecimal digits."""
    return uuid.uuid4().hex


PROMPT_ONLY = Sampling(params=SamplingParams(max_new_tokens=0))
"""Parameters of pooling tasks, which generate nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One sequence to generate."""

    tokens: Sequence[int]
    sampling: Sampling = PROMPT_ONLY
    task: Task = "generate"
    id: str = field(default_factory=new_id)
    request: str = ""
    """The client's id of the request that this sequence belongs to; empty: ``id``."""
    media: tuple[Media, ...] = ()
    """Images that some of the tokens stand for."""
    logprobs: LogprobOptions | None = None
    constraint: Constraint | None = None
    constraint_field: str = ""
    """The field of the request that has the constraint, for errors; empty: the field named by its kind."""
    reasoning_prefix: ReasoningPrefix | None = None
    """Reasoning that may come before the part that ``constraint`` applies to."""
    priority: int = 0
    salt: str = ""
    adapter: str | None = None
    caller: Caller = field(default_factory=current_caller)
    """The caller that sent the request."""
    terms: ServiceTerms = field(default_factory=current_terms)
    """The caller that the sequence counts for in the engine, and its deadline."""

    @property
    def engine_caller(self) -> str:
        """The engine's id of the caller."""
        return self.caller.owner if self.terms.caller is None else self.terms.caller

    def deadline(self, arrived: float) -> float | None:
        """Return the time by which the output should be complete if the request arrived at ``arrived``."""
        return None if self.terms.deadline_ms is None else arrived + self.terms.deadline_ms / 1000

    @property
    def engine_id(self) -> str:
        """The engine's id of the sequence, which is unique even if two callers choose the same id."""
        return f"{self.caller.owner}/{self.id}" if self.caller.owner else self.id


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an output: its reason (``stop``, ``length`` or ``abort``) and the matched stop token or string."""

    reason: str
    matched: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of a job's output: everything since the last piece."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    ending: Ending | None
    completion_tokens: int
    """Count of all output tokens so far."""
    cached_tokens: int
    retractions: int
    values: tuple[float, ...] = ()
    """Result of a pooling task."""
    drafts: DraftCounts | None = None
    """Counts of draft tokens; ``None``: nothing was drafted."""


def joined(pieces: Sequence[Piece]) -> Piece:
    """Join several pieces of one output into one piece."""
    last = pieces[-1]
    return Piece(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        logprobs=tuple(logprob for piece in pieces for logprob in piece.logprobs),
        prompt_logprobs=tuple(logprob for piece in pieces for logprob in piece.prompt_logprobs),
        ending=last.ending,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        retractions=last.retractions,
        values=last.values,
        drafts=last.drafts,
    )


def output_job(job: Job, index: int) -> Job:
    """Return the job of output ``index`` of ``n``, with its own id, and its own seed if the job has one."""
    if job.sampling.n == 1:
        return job
    params = job.sampling.params
    if params.seed is not None:
        params = replace(params, seed=params.seed + index)
    sampling = replace(job.sampling, params=params, n=1)
    return replace(job, id=f"{job.id}-{index}", request=job.request or job.id, sampling=sampling)
