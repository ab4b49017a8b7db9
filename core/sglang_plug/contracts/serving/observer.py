"""The contract of observers: notifications about steps and requests."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

DeadlineOutcome = Literal["", "met", "missed", "refused"]


@dataclass(frozen=True, slots=True)
class MetricCounter:
    """A number that a step extension counts since the start."""

    name: str
    """Name of the metric, which ends with ``_total``: letters, digits and underscores. ``/metrics`` shows it after
    ``sglang:``, so begin with the name of the plugin."""
    description: str
    labels: tuple[tuple[str, str], ...]
    """Names and values of its labels; the names and their order are the same for one metric."""
    value: float


@dataclass(frozen=True, slots=True)
class MetricGauge:
    """A gauge of a step extension. A report replaces the labels and values of the earlier one."""

    name: str
    """Name of the metric, see ``MetricCounter``. It ends with ``_info`` if the labels are the facts, and the value
    says nothing."""
    description: str
    labels: tuple[tuple[str, str], ...]
    """Names and values of its labels; the names and their order are the same for one metric."""
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
    replica: int = 0
    """Number of the replica whose step it was."""

    counters: tuple[MetricCounter, ...] = ()
    """Counters of step extensions; empty if they were reported less than a second ago."""
    gauges: tuple[MetricGauge, ...] = ()
    """Gauges of step extensions; they come with the counters."""


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
    """Outcome of the request's deadline; empty if it had none, or if its client disconnected before it."""


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
