"""Overlaps scheduling and execution: a step is queued on the device before the results of the previous one are read.

::

    host    plan 1, launch 1, plan 2, launch 2, read 1, commit 1, send, plan 3, launch 3, read 2, commit 2, ...
    device                   [ step 1 ............. ][ step 2 ......................... ][ step 3 ...

A step that is launched ahead takes its input tokens from the previous step, on the device. Rows of sequences that turn
out to have ended are dropped. For constrained outputs, only the forward pass is launched ahead: the allowed tokens are
known once the previous step is committed, and the tokens are sampled then, before anything else is done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sglang_plug.contracts.extension.step_budget import StepBudgetPhase
from sglang_plug.contracts.request import Output
from sglang_plug.engine.scheduling.commit import StepCommitter
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.sequences.launched_step import DeferredSampling, LaunchedStep
from sglang_plug.engine.sequences.scheduled_chunk import ScheduledChunk, StepResult
from sglang_plug.system.library_panics import panics_as_errors

from .runner import Runner

logger = logging.getLogger(__name__)

MAX_CONSECUTIVE_FAILURES = 3
"""Number of consecutive failed steps after which the engine stops."""


@dataclass(frozen=True, slots=True)
class InFlightStep:
    """A step on the device, sampling included."""

    chunks: list[ScheduledChunk]
    launched: LaunchedStep | Exception
    """The launched step, or the error that occurred while it was queued."""
    began: float
    """``time.perf_counter()`` when it was queued."""

    @property
    def dropped(self) -> bool:
        """True if no result of the step is needed any more."""
        return all(chunk.dropped for chunk in self.chunks)

    def results(self) -> list[StepResult]:
        """Wait for the step and return one result for each chunk. Raises the error of the step, if it failed."""
        if isinstance(self.launched, Exception):
            raise self.launched
        return self.launched.results()


@dataclass(frozen=True, slots=True)
class StepAhead:
    """A step that was queued before the previous one is committed."""

    chunks: list[ScheduledChunk]
    launched: LaunchedStep | DeferredSampling | Exception
    """The launched step without its sampling, where that depends on the previous step."""
    began: float

    def after_commit(self) -> InFlightStep | None:
        """Queue what was deferred, as the previous step is committed; ``None`` if no result is needed any more."""
        if all(chunk.dropped for chunk in self.chunks):
            return None
        chunks, launched = [chunk.committed for chunk in self.chunks], self.launched
        try:
            with panics_as_errors():
                sampled = launched.sample(chunks) if isinstance(launched, DeferredSampling) else launched
            return InFlightStep(chunks, sampled, self.began)
        except Exception as error:
            return InFlightStep(chunks, error, self.began)


class Pipeline:
    """Plans steps, runs them and commits their results; with ``overlap``, one step ahead where that is possible.

    Args:
        scheduler: plans steps.
        runner: the device.
        overlap: plan ahead. This pays off if launching a step does not wait for the step.
        out_of_memory_message: returns the message if an error means that a step ran out of memory, else ``None``.
        describe: returns any other error in one line.
        shared: True if other ranks compute the same steps.
        step_budget: learns the durations of steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        overlap: bool,
        out_of_memory_message: Callable[[Exception], str | None],
        describe: Callable[[BaseException], str],
        shared: bool,
        step_budget: StepBudgetPhase,
    ) -> None:
        self.scheduler = scheduler
        self.committer = StepCommitter(scheduler)
        self.runner = runner
        self.overlap = overlap
        self._out_of_memory_message = out_of_memory_message
        self._describe = describe
        self._shared = shared
        self._step_budget = step_budget
        self._ahead: InFlightStep | None = None
        self._failures = 0
        self._ended = 0.0
        """``time.perf_counter()`` when the last step ended."""

    @property
    def in_flight(self) -> bool:
        """True if a step is still on the device."""
        return self._ahead is not None

    def step(self, *, ahead: bool = True) -> list[Output]:
        """Finish one step and return its outputs; leave the next one on the device if ``ahead`` and possible.

        Raises the error of a step if several steps fail in a row.
        """
        try:
            with panics_as_errors():
                step = self._current()
                next_step = self._launch_ahead(step) if ahead and self.overlap and step is not None else None
        except Exception as error:
            return self._end_all(error)
        if step is None:
            return []
        outputs = self.committer.commit(step.chunks, self._results(step))
        self._ahead = None if next_step is None else next_step.after_commit()
        return outputs

    def forget_dropped(self) -> None:
        """Stop waiting for the step on the device if none of its results is needed any more.

        As with single dropped rows, the slots of its sequences are free although the device may still write to them: a
        sequence that gets them is computed by a step queued later, so it writes to them later, before it reads them.
        """
        if self._ahead is not None and self._ahead.dropped:
            self._ahead = None

    def _current(self) -> InFlightStep | None:
        """Return the step that is on the device already, or else a new one; ``None`` if there is nothing to do."""
        step, self._ahead = self._ahead, None
        if step is not None:
            self.scheduler.start_planned_step(step.chunks)
            return step
        chunks = self.scheduler.plan()
        if not chunks:
            return None
        began = time.perf_counter()
        try:
            with panics_as_errors():
                return InFlightStep(chunks, self.runner.launch(chunks), began)
        except Exception as error:
            return InFlightStep(chunks, error, began)

    def _launch_ahead(self, step: InFlightStep) -> StepAhead | None:
        """Plan and queue the step after ``step``; ``None`` if the results of ``step`` must be known first."""
        if isinstance(step.launched, Exception):
            return None
        chunks = self.scheduler.plan_ahead(step.chunks)
        if not chunks:
            return None
        began = time.perf_counter()
        try:
            with panics_as_errors():
                return StepAhead(chunks, self.runner.launch(chunks, step.launched), began)
        except Exception as error:
            return StepAhead(chunks, error, began)

    def _end_all(self, error: Exception) -> list[Output]:
        """End all requests that wait or run, since a step could not be planned because of any of them.

        Raises ``error`` if steps fail several times in a row, or if KV slots or states were lost by it.
        """
        self._failures += 1
        if self._failures >= MAX_CONSECUTIVE_FAILURES:
            raise error
        logger.error("a step could not be planned", exc_info=error)
        outputs = self.scheduler.fail_all(f"the step could not be planned: {self._describe(error)}")
        try:
            self.scheduler.check()
        except Exception as lost:
            raise error from lost
        return outputs

    def _results(self, step: InFlightStep) -> list[StepResult]:
        """Return the results of a step; turn an error into failed results, so that it does not end the engine.

        The error is raised if steps fail several times in a row, or if there are other ranks: these are still computing
        the step, or wait for this rank's part of it.
        """
        try:
            with panics_as_errors():
                results = step.results()
        except Exception as error:
            if self._shared:
                raise
            if (message := self._out_of_memory_message(error)) is not None:  # smaller steps will fit
                logger.error("a step of %d sequences failed: %s", len(step.chunks), message)
                return [StepResult(error=message)] * len(step.chunks)
            self._failures += 1
            if self._failures >= MAX_CONSECUTIVE_FAILURES:
                raise
            logger.exception("a step of %d sequences failed", len(step.chunks))
            return [StepResult(error=f"the step failed: {self._describe(error)}")] * len(step.chunks)
        self._failures = 0
        began, self._ended = max(step.began, self._ended), time.perf_counter()
        has_prompts = self.scheduler.counters.has_prompts
        self._step_budget.step_computed(step.chunks, self._ended - began, has_prompts=has_prompts)
        return results
