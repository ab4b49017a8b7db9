"""A job of the engine, which generates one sequence, and its output."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sglang_plug import (
    Constraint,
    DraftCounts,
    Finish,
    LogprobOptions,
    Media,
    Output,
    ReasoningBlock,
    ReasoningPrefix,
    Request,
    SamplingParams,
    TokenLogprob,
)
from sglang_plug.contracts.request import Task
from sglang_plug.deprecation import warn_deprecated
from sglang_plug_api.answers.errors import ApiError, json_bytes
from sglang_plug_api.service.admission_gate import AdmissionGate
from sglang_plug_api.service.callers import Caller, current_caller
from sglang_plug_api.service.preparation import batch_line_aborted
from sglang_plug_api.service.request_context import RequestContext, current_request_context

from .sampling import Sampling

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_ID_CHARACTERS = 256


def new_id() -> str:
    """Return a new request id: 32 hexadecimal digits."""
    return uuid.uuid4().hex


PROMPT_ONLY = Sampling(params=SamplingParams(max_new_tokens=0))
"""Parameters of pooling tasks, which generate nothing."""
MAX_PROMPT_LOGPROBS = 1 << 20
"""Largest number of log-probabilities that one request gets for the positions of its prompts."""
MAX_OUTPUT_LOGPROBS = 1 << 23
"""Largest number of log-probabilities of alternatives that one request gets for the positions of its outputs."""
MAX_PARAM_BYTES = 1 << 24
"""Largest size as JSON of ``logit_bias``, or of a field of a logits processor, in all sequences of a request."""

MAX_CONSTRAINT_CHARACTERS = 1 << 26
"""Largest length of the constraints of all sequences of a request together: each is sent with a copy of its own."""


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
    reasoning: ReasoningBlock | None = None
    """Markers of the reasoning in the output; ``None`` if reasoning is not separated from the answer."""
    priority: int = 0
    salt: str = ""
    adapter: str | None = None
    caller: Caller = field(default_factory=current_caller)
    """The caller that sent the request. By default it is the one whose request is being served where the job is made:
    routes of plugins need not name it, and the server's own name it."""
    context: RequestContext = field(default_factory=current_request_context)
    """The caller that the sequence counts for in the engine, and its deadline. By default it is the context of the
    request that is being served where the job is made, as for ``caller``."""

    @property
    def terms(self) -> RequestContext:
        """The earlier name of ``context``."""
        warn_deprecated("Job.terms is now Job.context")
        return self.context

    @property
    def engine_caller(self) -> str:
        """The engine's id of the caller."""
        return self.caller.owner if self.context.caller is None else self.context.caller

    @property
    def engine_id(self) -> str:
        """The engine's id of the sequence, which is unique even if two callers choose the same id."""
        return f"{self.caller.owner}/{self.id}" if self.caller.owner else self.id

    @property
    def prompt_logprobs(self) -> int:
        """Number of log-probabilities that are reported for the prompt: those of alternatives, or of its tokens."""
        options = self.logprobs
        if options is None or options.start < 0:
            return 0
        return (len(self.tokens) - options.start) * max(1, options.top + len(options.ids))

    def engine_request(self, arrived: float, *, isolated: bool) -> Request:
        """Return the request of the engine; ``isolated``: it shares no cached prefixes with those of other callers."""
        return Request(
            id=self.engine_id,
            tokens=tuple(self.tokens),
            media=self.media,
            params=self.sampling.params,
            task=self.task,
            logprobs=self.logprobs,
            constraint=self.constraint,
            reasoning_prefix=self.reasoning_prefix,
            reasoning=self.reasoning,
            priority=self.priority,
            salt=f"{self.caller.owner}:{self.salt}" if isolated else self.salt,
            adapter=self.adapter,
            caller=self.engine_caller,
            deadline=self.context.deadline,
            arrived=arrived,
        )


def limited(jobs: Sequence[Job]) -> list[Job]:
    """Return ``jobs``, of ``n`` outputs each, with limits on the lengths of outputs that the request leaves open.

    Raises ``ApiError`` for a request that would take too much memory.
    """
    _check_prompt_logprobs(jobs)
    _check_params(jobs)
    _check_constraints(jobs)
    longest = MAX_OUTPUT_LOGPROBS // max(1, sum(_output_alternatives(job) for job in jobs))
    jobs = [_shortened(job, longest) for job in jobs]
    _check_output_logprobs(jobs)
    return jobs


def _output_alternatives(job: Job) -> int:
    """Return the number of alternatives that are reported for each position of the output, in all outputs."""
    return 0 if job.logprobs is None else (job.logprobs.top + len(job.logprobs.ids)) * job.sampling.n


def _shortened(job: Job, longest: int) -> Job:
    """Return ``job`` with at most ``longest`` new tokens, if it has alternatives and the request names no length."""
    sampling, params = job.sampling, job.sampling.params
    length = max(longest, params.min_new_tokens)
    if not (sampling.open_length and _output_alternatives(job)) or params.max_new_tokens <= length:
        return job
    return replace(job, sampling=replace(sampling, params=replace(params, max_new_tokens=length)))


def _check_output_logprobs(jobs: Iterable[Job]) -> None:
    """Raise ``ApiError`` for too many log-probabilities of outputs: they take memory until the last is there."""
    total = sum(_output_alternatives(job) * max(1, job.sampling.params.max_new_tokens) for job in jobs)
    if total > MAX_OUTPUT_LOGPROBS:
        raise ApiError(
            f"the request asks for {total} log-probabilities of alternatives at the positions of its outputs "
            f"(sequences times max_tokens times alternatives); the maximum is {MAX_OUTPUT_LOGPROBS}: ask for fewer "
            "alternatives, tokens or sequences",
            param="max_tokens",
        )


def _check_prompt_logprobs(jobs: Iterable[Job]) -> None:
    """Raise ``ApiError`` for too many log-probabilities of prompts: they take memory, and are sent at once."""
    total = sum(job.prompt_logprobs * job.sampling.n for job in jobs)
    if total > MAX_PROMPT_LOGPROBS:
        raise ApiError(
            f"the request asks for {total} log-probabilities of alternatives at the positions of its prompts; the "
            f"maximum is {MAX_PROMPT_LOGPROBS}: ask for fewer alternatives or positions"
        )


def _check_params(jobs: Iterable[Job]) -> None:
    """Raise ``ApiError`` for parameters with too many tokens: each sequence has its own copy in the engine."""
    sizes: dict[int, int] = {}
    totals = Counter[str]()
    for job in jobs:
        params = job.sampling.params
        for name, value in {"logit_bias": params.logit_bias, **params.processor_fields}.items():
            if id(value) not in sizes:
                sizes[id(value)] = len(json_bytes(value))
            totals[name] += sizes[id(value)] * job.sampling.n
    for name, total in totals.items():
        if total > MAX_PARAM_BYTES:
            raise ApiError(
                f"{name} has {total} bytes in all sequences of the request together (prompts times n); the maximum "
                f"is {MAX_PARAM_BYTES}: send fewer prompts in one request, or fewer tokens",
                param=name,
            )


def _check_constraints(jobs: Iterable[Job]) -> None:
    """Raise ``ApiError`` for constraints that are too long in all sequences; the engine limits the length of each."""
    total = 0
    for job in jobs:
        if job.constraint is None:
            continue
        total += len(job.constraint.source) * job.sampling.n
        if total > MAX_CONSTRAINT_CHARACTERS:
            field = job.constraint_field or job.constraint.kind
            raise ApiError(
                f"{field} has more than {MAX_CONSTRAINT_CHARACTERS} characters, the maximum, in all sequences of the "
                "request together (prompts times n): send fewer prompts in one request, or a shorter constraint",
                param=field,
            )


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an output: its reason (``stop``, ``length`` or ``abort``) and the matched stop token or string."""

    reason: str
    matched: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutput:
    """The output of a job since the last one, or all of it."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    ending: Ending | None
    completion_tokens: int
    """Count of all output tokens so far."""
    cached_tokens: int
    retractions: int
    loaded_tokens: tuple[tuple[str, int], ...] = ()
    """Number of the ``cached_tokens`` that came from KV stores, by the name of the store."""
    values: tuple[float, ...] = ()
    """Result of a pooling task."""
    drafts: DraftCounts | None = None
    """Counts of draft tokens; ``None``: nothing was drafted."""


def joined(outputs: Sequence[JobOutput]) -> JobOutput:
    """Join the parts of one output."""
    last = outputs[-1]
    return JobOutput(
        text="".join(output.text for output in outputs),
        tokens=tuple(token for output in outputs for token in output.tokens),
        logprobs=tuple(logprob for output in outputs for logprob in output.logprobs),
        prompt_logprobs=tuple(logprob for output in outputs for logprob in output.prompt_logprobs),
        ending=last.ending,
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        retractions=last.retractions,
        loaded_tokens=last.loaded_tokens,
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


class RunningJob:
    """A job in flight that other tasks can abort.

    Args:
        job: the job.
        ended: called when the engine has nothing left of an aborted job, maybe before its consumer knows of it.
    """

    def __init__(self, job: Job, ended: Callable[[RunningJob], None] = lambda _: None) -> None:
        self._job = job
        self._ended = ended
        self._waiting: asyncio.Task[Any] | None = None
        self._outputs: AsyncGenerator[Output, None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.aborted = False
        """True once the job has to end, with its output so far."""
        self._runs_again = False

    def belongs_to(self, request: str, caller: Caller) -> bool:
        """Return True if ``caller`` may use the job and ``request`` is its id."""
        return request in (self._job.id, self._job.request) and caller.may_use(self._job.caller.owner)

    def abort(self, *, with_all: bool = False) -> None:
        """Make the next output, awaited already or not, the last, and let the engine end the job now.

        ``with_all``: all jobs are aborted, so that those of batches, whose clients did not ask for it, run again.
        """
        self.aborted = True
        self._runs_again = with_all and self._job.context.is_batch_line
        if self._waiting is not None:
            self._waiting.cancel()
        elif self._outputs is not None:  # the consumer handles an earlier output, maybe for a long time
            self._closing = asyncio.create_task(self._close(self._outputs))
            self._outputs = None

    async def wait(self, gate: AdmissionGate) -> None:
        """Wait until ``gate`` is open, or the job was aborted."""
        await self._unless_aborted(gate.wait_open)

    @contextlib.asynccontextmanager
    async def reading(self, outputs: AsyncGenerator[Output, None]) -> AsyncIterator[None]:
        """Let ``next`` read ``outputs`` within the context, which closes them."""
        self._outputs = outputs
        try:
            yield
        finally:
            if self._closing is not None:
                await asyncio.wait((self._closing,))
            else:
                self._outputs = None
                await outputs.aclose()

    async def next(self) -> Output:
        """Return the next output, or an ending if the job was aborted.

        Raises ``RequestError`` with status 503 instead of the ending if the job has to run again.
        """
        outputs = self._outputs
        output = None if outputs is None else await self._unless_aborted(outputs.__anext__)
        if output is not None:
            return output
        if self._runs_again:
            raise batch_line_aborted()
        return Output(id=self._job.id, finish=Finish("abort"))

    async def _unless_aborted(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        """Await ``work``; return ``None`` if the job was aborted before or meanwhile.

        ``abort`` may interrupt the task only while it waits here; at other times it handles an earlier output.
        """
        task = asyncio.current_task()
        if self.aborted or task is None:
            return None
        self._waiting, cancellations = task, task.cancelling()
        try:
            return await work()
        except asyncio.CancelledError:
            if not self.aborted or task.uncancel() > cancellations:
                raise  # something else cancelled the task
            return None
        finally:
            self._waiting = None

    async def _close(self, outputs: AsyncGenerator[Output, None]) -> None:
        try:
            await outputs.aclose()
        except Exception:
            logger.exception("the request %r could not be aborted", self._job.id)
        self._ended(self)
