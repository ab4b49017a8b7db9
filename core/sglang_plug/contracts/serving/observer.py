"""The contract of observers: notifications about steps and requests."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

DeadlineOutcome = Literal["", "met", "missed", "refused"]


@dataclass(frozen=True, slots=True)
class MetricTotal:
    """A number that a step extension counts since the start."""

    name: str
    """Name of the metric, which ends with ``_total``."""
    description: str
    labels: tuple[tuple[str, str], ...]
    """Names and values of its labels; the names are the same for one metric."""
    value: float


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """Facts that a step extension reports as the labels of a gauge, in place of those that it reported before."""

    name: str
    """Name of the metric, which ends with ``_info``."""
    description: str
    labels: tuple[tuple[str, str], ...]
    """Names and values of its labels; the names are the same for one metric."""
    value: float = 1.0


@dataclass(slots=True, kw_only=True)
class StepStats:
    """Statistics of one step of the engine.

    Do not change them: all observers get the same object. It is not frozen because one is constructed in each step.
    """

    time: float
    """``time.time()`` at the end of the step."""
    seconds: float
    prefill_sequences: int
    prefill_tokens: int
    cached_tokens: int
    """Prompt tokens of sequences admitted in this step that came from the prefix cache."""
    decode_sequences: int
    running: int
    waiting: int
    used_slots: int
    """KV slots that running sequences hold."""
    cached_slots: int
    free_slots: int
    capacity: int
    retracted: int
    forced_tokens: int = 0
    """Output tokens that constraints forced; each saves a step."""
    drafted_tokens: int = 0
    """Drafted tokens that the step computed."""
    accepted_tokens: int = 0
    """Drafted tokens that were accepted; each saves a step."""
    queue_seconds: tuple[float, ...] = ()
    """Seconds from arrival to this step, of each request that it was the first step of."""
    relieved_tokens: int = 0
    """Cached tokens that were evicted since the last report because the host's memory was running out."""
    target_seconds: float = 0.0
    """Time that the last step with prompt tokens and decoding sequences was allowed to take; 0: without a limit."""
    replica: int = 0
    """Number of the replica whose step it was."""

    totals: tuple[MetricTotal, ...] = ()
    """Totals of step extensions; empty if they were reported less than a second ago."""
    step_coefficients: Mapping[str, float] | None = None
    """What was learned about the duration of steps, by the name of a coefficient: seconds, and a multiple of the decode
    step; ``None`` if it was reported less than a second ago, empty if nothing is learned."""
    infos: tuple[MetricInfo, ...] = ()
    """Facts of step extensions; they come with the totals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEvent:
    """The end of a request. Times are ``time.time()``."""

    id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    arrived: float
    first_token: float | None
    finished: float
    request: str = ""
    """The caller's id of the request that this is one sequence of; empty: ``id``."""
    deadline: DeadlineOutcome = ""
    """What became of the request's deadline; empty if it had none, or if its client left before it."""


class Observer:
    """Observes the server from the API process. Every method does nothing by default; none may block."""

    def on_start(self, info: Mapping[str, Any]) -> Awaitable[None] | None:
        """Called when the engine is ready; ``info`` is the content of ``/server_info``. See ``Lifecycle.on_start``."""
        return None

    def on_request(self, event: RequestEvent) -> None:
        """Called when a request has ended."""

    def on_tokens(self, request: str, tokens: int, time: float) -> None:
        """Called when a request has ``tokens`` new tokens."""

    def on_step(self, stats: StepStats) -> None:
        """Called when the engine has finished a step."""

    def on_stop(self) -> Awaitable[None] | None:
        """Called when the server stops, after the last request. See ``Lifecycle.on_stop``."""
        return None
