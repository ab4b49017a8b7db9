"""Phases of step extensions in the life of a request: admission, planning, output, and operation of the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_plug.contracts.request import Output
    from sglang_plug.contracts.serving.observer import MetricCounter, MetricGauge, StepStats

    from .views import ChunkView, PromptLayout, SequenceView, StepPlan


class AdmissionPhase:
    """The life of a request. Override the methods that are needed; the others do nothing."""

    def admit(self, sequence: SequenceView) -> None:
        """Check a request and prepare its state, before it is queued; called once. Raise ``RequestError`` to refuse."""

    def layout(self, sequence: SequenceView) -> PromptLayout | None:
        """Return how the prompt is laid out, if not as text; called once, after ``admit`` of all extensions.

        Only one extension may lay out a prompt. A step that computes tokens of such a prompt is never replayed.
        """
        return None

    def cache_key(self, sequence: SequenceView) -> str:
        """Return a part of the name of the sequence's prefix namespace: prefixes are shared only where all parts agree.

        Called once, after ``admit`` of all extensions.
        """
        return ""

    def finished(self, sequence: SequenceView) -> None:
        """The request is over: finished, aborted, failed, or refused by another extension or the engine.

        Called once for each request that this extension has admitted, that is, whose ``admit`` raised no error. An
        error of this method is logged, and ends nothing.
        """


class PlanningPhase:
    """The planning of steps. Override the methods that are needed; the others do nothing."""

    max_draft_rows: int = 0
    """Maximum number of rows sampled in a step with draft tokens; memory for their logits is reserved at start."""

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> list[SequenceView]:
        """Return the waiting sequences that may be admitted, the first to admit first.

        May leave out or move sequences, and may not add any. Called with the order of the schedule policy for each
        step that may admit sequences, and when preemption is due with the queue, whose order means nothing then, or
        with a single sequence and all but one of the running ones: so it may be called often for a step, and should
        only depend on its arguments and the time.
        """
        return waiting

    def plan(self, step: StepPlan) -> None:
        """Add draft tokens to a step, after everything else is planned."""

    def waits_for(self, chunks: Sequence[ChunkView]) -> bool:
        """Report whether the next step should be planned only when the results of ``chunks`` are known.

        By default the engine plans one step ahead where it can.
        """
        return False


class OutputPhase:
    """The results of steps. Override the methods that are needed; the others do nothing."""

    def verified(self, sequence: SequenceView, drafted: int, accepted: int) -> None:
        """A step verified ``drafted`` draft tokens, and the first ``accepted`` of them are tokens of the sequence."""

    def output(self, sequence: SequenceView, output: Output) -> Output:
        """Return what the client receives of a step; may add to it, and may not change its tokens.

        ``sequence`` has the tokens of ``output`` already. A ``finish`` that is added ends the request with the tokens
        of this step, even where a step extension constrains the output: where ``sequence.constrained`` is true, the
        reason should be ``length``, since clients take ``stop`` for an output that satisfies its constraint. A
        ``finish`` that is there already must stay. ``output`` itself is not changed: ``dataclasses.replace`` returns a
        changed copy.
        """
        return output


class ServicePhase:
    """Operation of the server. Override the methods that are needed; the others do nothing."""

    def start(self) -> None:
        """The engine is built and will serve; called once, after the weights are loaded."""

    def step_done(self, stats: StepStats) -> None:
        """A step is committed, with these statistics."""

    def idle_timeout(self) -> float | None:
        """Return the maximum time in seconds that an idle engine waits before it calls ``between_steps`` again.

        ``None``: it waits for the next message. 0 or less, for a time that has passed: it does not wait.
        """
        return None

    def between_steps(self) -> None:
        """Do what does not belong to a step: called before each step, and when an idle engine has waited.

        It delays the step, so it should return at once unless there is something to do.
        """

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        """Control calls by name, which routes can make between two steps.

        Called at the start and after each weight update, since other weights may have other calls. No other extension
        may have a call of the same name, nor the engine.
        """
        return {}

    def info(self) -> Mapping[str, Any]:
        """Plain data for ``/server_info``; also collected once when the engine is ready.

        No other extension may use the same names, nor the engine.
        """
        return {}


class MetricsPhase:
    """Numbers that observers report as metrics. Override the methods that are needed; the others do nothing."""

    def counters(self) -> Iterable[MetricCounter]:
        """Return numbers that observers report as metrics.

        Called about once per second while steps are computed, and when the engine becomes idle.
        """
        return ()

    def gauges(self) -> Iterable[MetricGauge]:
        """Return gauges that observers report as metrics; called when ``counters`` is."""
        return ()
