"""Keeps a device busy that works on its own: a step is queued there before the one ahead of it has been read.

::

    host    plan 1, launch 1, plan 2, launch 2, read 1, commit 1, tell, plan 3, launch 3, read 2, commit 2, ...
    device                   [ step 1 ............. ][ step 2 ......................... ][ step 3 ...

A step that is launched ahead takes its input tokens from the step before, on the device. Rows of sequences that turn
out to have ended are dropped. Where tokens are constrained, only the forward pass is launched ahead: what they may be
is known once the step before is committed, and they are chosen then, before anything else is done.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sglang_plug.request import Output

from .launched import Launched, Postponed
from .runner import Runner
from .scheduler import Scheduler
from .shares import Sampled, Share

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""Steps that may fail one after the other before the engine gives up."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A step on the device."""

    shares: list[Share]
    launched: Launched | Postponed | Exception
    """Or what went wrong when it was queued."""

    @property
    def dropped(self) -> bool:
        """True if nobody wants anything of it any more."""
        return all(share.dropped for share in self.shares)

    def results(self) -> list[Sampled]:
        """Wait for it; one result for each share. Raises what went wrong."""
        if isinstance(self.launched, Exception):
            raise self.launched
        assert isinstance(self.launched, Launched)
        return self.launched.results()


class Pipeline:
    """Plans steps, runs them and commits what came of them; with ``overlap``, one step ahead where that is possible.

    Args:
        scheduler: plans and commits.
        runner: the device.
        overlap: plan ahead. Worth it if launching a step does not wait for it.
        shortage: what to tell of an error if it says that memory did not suffice for a step.
        describe: any other error in one line.
        shared: other ranks compute the same steps.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        overlap: bool,
        shortage: Callable[[Exception], str | None] = lambda error: None,
        describe: Callable[[BaseException], str] = repr,
        shared: bool = False,
    ) -> None:
        self.scheduler, self.runner, self.overlap = scheduler, runner, overlap
        self._shortage, self._describe, self._shared = shortage, describe, shared
        self._ahead: Flight | None = None
        self._failures = 0

    @property
    def in_flight(self) -> bool:
        """True if a step was left on the device."""
        return self._ahead is not None

    def step(self, *, ahead: bool = True) -> list[Output]:
        """Finish one step; returns its news. Leaves the next one on the device, if ``ahead`` and it can be planned.

        Raises what a step raised if that happens again and again.
        """
        flight = self._current()
        if flight is None:
            return []
        if ahead and self.overlap and isinstance(flight.launched, Launched):
            shares = self.scheduler.plan_ahead(flight.shares)
            self._ahead = self._launch(shares, flight.launched) if shares else None
        outputs = self.scheduler.commit(flight.shares, self._results(flight))
        self.forget_dropped()
        if self._ahead is not None:
            self._ahead = self._follow(self._ahead)
        return outputs

    def forget_dropped(self) -> None:
        """Do not wait for the step that was left on the device if nobody wants anything of it any more.

        As with single rows, its sequences' slots are free although the device may still write to them: whoever gets
        them is computed by a step that is queued later, and so writes to them later, and before it reads them.
        """
        if self._ahead is not None and self._ahead.dropped:
            self._ahead = None

    def _current(self) -> Flight | None:
        """The step that is on the device already, or else a new one; ``None`` if there is nothing to do."""
        flight, self._ahead = self._ahead, None
        if flight is not None:
            self.scheduler.begin(flight.shares)
            return flight
        shares = self.scheduler.plan()
        return self._launch(shares) if shares else None

    @staticmethod
    def _follow(flight: Flight) -> Flight:
        """``flight`` once the step before it is committed: what waited for that is queued."""
        shares, launched = [share.committed for share in flight.shares], flight.launched
        try:
            return Flight(shares, launched.choose(shares) if isinstance(launched, Postponed) else launched)
        except Exception as error:
            return Flight(shares, error)

    def _launch(self, shares: list[Share], before: Launched | None = None) -> Flight:
        try:
            return Flight(shares, self.runner.launch(shares, before))
        except Exception as error:
            return Flight(shares, error)

    def _results(self, flight: Flight) -> list[Sampled]:
        """An error ends the requests of the step, not the engine, unless it comes back, or there are other ranks.

        These are still at the step, or wait for what this one was to add to it.
        """
        try:
            results = flight.results()
        except Exception as error:
            if self._shared:
                raise
            if (told := self._shortage(error)) is not None:  # smaller steps will fit
                logger.error("a step of %d sequences failed: %s", len(flight.shares), told)
                return [Sampled(error=told)] * len(flight.shares)
            self._failures += 1
            if self._failures >= FAILURES_IN_A_ROW:
                raise
            logger.exception("a step of %d sequences failed", len(flight.shares))
            return [Sampled(error=f"the step failed: {self._describe(error)}")] * len(flight.shares)
        self._failures = 0
        return results
