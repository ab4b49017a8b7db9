"""Limits of single callers: the sequences of one that run together, and those that wait, whatever the policy is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sglang_plug import AdmissionPhase, ExtensionContext, PlanningPhase, RequestError, SequenceView, StepExtension

TOO_MANY_REQUESTS = 429


class CallerLimits(StepExtension, AdmissionPhase, PlanningPhase):
    """Refuses requests of callers with too many waiting ones, and leaves out those of callers with many running ones.

    Args:
        max_running: largest number of running sequences of one caller; ``None``: no limit.
        max_waiting: largest number of waiting sequences of one caller; ``None``: no limit.
    """

    def __init__(self, max_running: int | None = None, max_waiting: int | None = None) -> None:
        self._max_running, self._max_waiting = max_running, max_waiting
        self._open: dict[str, dict[int, SequenceView]] = {}
        """The sequences of each caller whose requests are open."""

    def admit(self, sequence: SequenceView) -> None:
        """Refuse a request whose caller has too many waiting ones."""
        caller = sequence.request.caller
        others = self._open.get(caller, {})
        if self._max_waiting is not None and len(others) >= self._max_waiting:
            waiting = sum(not other.slots and not other.generated for other in others.values())  # not paused ones
            if waiting >= self._max_waiting:
                raise RequestError(
                    f"You have {self._max_waiting} waiting requests, which is the maximum; try again later.",
                    TOO_MANY_REQUESTS,
                )
        self._open.setdefault(caller, {})[id(sequence)] = sequence

    def finished(self, sequence: SequenceView) -> None:
        """Forget a sequence."""
        caller = sequence.request.caller
        del self._open[caller][id(sequence)]
        if not self._open[caller]:
            del self._open[caller]

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> list[SequenceView]:
        """Leave out waiting sequences of callers that have, or will have, as many running ones as they may."""
        if self._max_running is None:
            return waiting
        held = Counter(sequence.request.caller for sequence in running)
        present = set(map(id, running))
        admitted = []
        for sequence in waiting:
            if id(sequence) not in present:
                if held[sequence.request.caller] >= self._max_running:
                    continue
                held[sequence.request.caller] += 1
            admitted.append(sequence)
        return admitted


def build(context: ExtensionContext) -> CallerLimits | None:
    """Return the extension; ``None`` if no limit is set."""
    schedule = context.config.schedule
    limits = schedule.max_running_per_caller, schedule.max_queued_per_caller
    return None if limits == (None, None) else CallerLimits(*limits)
