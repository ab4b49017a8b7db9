"""Limits the prompt tokens of a step that also decodes, so that their next tokens are not late.

A fixed number of prompt tokens takes whatever it takes: on a slow device, or with long contexts, sequences that decode
wait for seconds while prompts arrive. Here a step has a time, and as many prompt tokens as fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sglang_plug import (
    ChunkView,
    ExtensionContext,
    MetricGauge,
    MetricsPhase,
    ModelSpec,
    ServicePhase,
    StepBudgetPhase,
    StepExtension,
)

from .step_time_model import StepTimeModel, StepWork
from .timed_budget import MIN_TOKENS, TimedBudget

DECODE_MULTIPLE = 4.75
"""Time of a step with prompt tokens, in decode steps of the sequences that decode, if the target is automatic. Every
step reads the weights once, in part while it multiplies prompt tokens; this costs a twentieth of the throughput."""
MIN_SECONDS = 0.05
"""Least time of a step with an automatic target: readers do not notice a shorter delay."""
MIN_AUTOMATIC = 32
"""Prompt tokens that a step may always have with an automatic target, which must not cost much throughput on a machine
that others slow down."""
OBSERVE_EVERY = 8
"""Number of steps without prompt tokens of which one is observed, once the model of decode steps is trusted."""
AUTOMATIC, FIXED, OFF = "automatic", "fixed", "off"
"""Modes of the target duration: a multiple of the decode step, a configured number of milliseconds, or no target."""

TARGET = "step_target_seconds"
TARGET_TEXT = "Target duration in seconds of a step that computes prompts while requests decode; 0: no target"
COEFFICIENT = "step_time_coefficient"
COEFFICIENT_TEXT = "Coefficients of the model of step durations: seconds, or multiples of a decode step"


class StepTime(StepExtension, StepBudgetPhase, ServicePhase, MetricsPhase):
    """Decides how many prompt tokens a step has, and learns how long steps take.

    Args:
        target: seconds of a step with prompts while sequences decode; ``None``: ``DECODE_MULTIPLE`` decode steps,
            and at least ``MIN_SECONDS``.
    """

    def __init__(self, target: float | None = None) -> None:
        self._target = target
        self._model = StepTimeModel()
        self._unobserved = 0
        self.target_seconds = MIN_SECONDS if target is None else target
        """Target duration of the last step with decoding sequences and waiting prompts; before it, the least target."""

    def prompt_budget(self, decoding: Sequence[ChunkView]) -> TimedBudget | None:
        """Return the prompt tokens that fit into a step with ``decoding``; see ``StepBudgetPhase``."""
        if not decoding or not self._model.predicts_decode:
            return None
        work = StepWork()
        for chunk in decoding:
            work.add_decode(chunk.end)
        seconds, min_tokens = self._target, MIN_TOKENS
        if seconds is None:
            min_tokens = MIN_AUTOMATIC
            decode_seconds = self._model.decode_seconds(work.decode_rows, work.decode_context)
            seconds = max(MIN_SECONDS, DECODE_MULTIPLE * decode_seconds)
        self.target_seconds = seconds
        return TimedBudget(work, self._model, seconds, min_tokens)

    def step_computed(self, chunks: Sequence[ChunkView], seconds: float, *, has_prompts: bool) -> None:
        """Learn from the duration of a step; of those that only decode, few are needed."""
        if not has_prompts:
            self._unobserved += 1
            if self._unobserved < OBSERVE_EVERY and self._model.trusts_decode:
                return
            self._unobserved = 0
        self._model.observe(work_of(chunks), seconds)

    def step_coefficients(self) -> dict[str, float]:
        """Return what was learned, by name."""
        return self._model.coefficients()

    def gauges(self) -> Iterable[MetricGauge]:
        """Report the time of a step and the learned coefficients as metrics."""
        yield target_gauge(self.target_seconds)
        for name, value in self.step_coefficients().items():
            yield MetricGauge(COEFFICIENT, COEFFICIENT_TEXT, (("coefficient", name),), value)

    def info(self) -> Mapping[str, Any]:
        """Return the time of a step and the learned coefficients, as plain data for ``/server_info``."""
        mode = AUTOMATIC if self._target is None else FIXED
        return {"step_time": step_time_info(mode, self.target_seconds, self.step_coefficients())}


class StepTimeOff(StepExtension, ServicePhase, MetricsPhase):
    """Reports that steps have no time; the token budget is their only limit."""

    def gauges(self) -> Iterable[MetricGauge]:
        """Report that there is no target."""
        yield target_gauge(0.0)

    def info(self) -> Mapping[str, Any]:
        """Return what ``StepTime`` does, without a target."""
        return {"step_time": step_time_info(OFF, 0.0, {})}


def target_gauge(seconds: float) -> MetricGauge:
    """Return the metric of the time of a step; 0: there is no target."""
    return MetricGauge(TARGET, TARGET_TEXT, (), seconds)


def step_time_info(mode: str, seconds: float, coefficients: dict[str, float]) -> dict[str, Any]:
    """Return the entry of ``/server_info``."""
    return {"target_itl": mode, "target_seconds": seconds, "coefficients": coefficients}


def work_of(chunks: Iterable[ChunkView]) -> StepWork:
    """Return the work in a step of ``chunks``, which are not committed yet."""
    work = StepWork()
    for chunk in chunks:
        if chunk.prefilling:
            work.add_prefill(chunk.start, chunk.count)
        else:
            work.add_decode(chunk.end)
        if chunk.drafts:
            work.add_drafts(chunk.end, len(chunk.drafts))
    return work


def build(context: ExtensionContext) -> StepTime | StepTimeOff:
    """Return the extension; prompts that must not be split, and tasks other than generation, have no limit."""
    target, is_causal = context.config.schedule.target_itl_ms, context.model.spec_as(ModelSpec).causal
    if not target or not is_causal or "generate" not in context.tasks:
        return StepTimeOff()
    return StepTime(None if target < 0 else target / 1000)
