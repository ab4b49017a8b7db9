"""Time slices: sequences that run for long are preempted for requests that wait for long, whatever the policy is.

Without them, requests that arrive while ``--max-running-requests`` sequences run wait until one of these ends, for
minutes if outputs are long; and clients that read nothing would let everybody wait, because a client's own system
accepts hundreds of kilobytes before the server can notice that nobody reads them. Shorter requests are not affected.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sglang_plug import ExtensionContext, PreemptionPhase, SequenceView, StepExtension

TURN_SECONDS = 5.0
"""Seconds after which a running sequence may be preempted in favour of a request that has waited as long."""
CHECKS_PER_TURN = 5
TOKENS_PER_GENERATED = 8
"""A sequence runs on until it has generated one token per so many of its tokens. So the sequences generate more
than they compute again, even if the prefix cache forgets all of them."""

Preempted = tuple[list[SequenceView], list[SequenceView]]
"""The running sequences that are preempted, and the waiting ones that are admitted first."""


@dataclass(slots=True)
class Turn:
    """The time for which a sequence has been running, or waiting."""

    since: float
    """When the sequence was admitted, or when it was queued."""
    generated: int
    """Tokens that the sequence had generated then."""


class TimeSlices(StepExtension, PreemptionPhase):
    """Preempts the sequences with the longest turns in favour of requests that have waited as long.

    Args:
        now: the clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._next_check = 0.0

    def queued_or_admitted(self, sequence: SequenceView) -> None:
        """Begin a turn."""
        sequence.extras[self] = Turn(self._now(), sequence.generated)

    def preemption_due(self) -> bool:
        """Report whether it is time to look at the queue again."""
        return self._now() >= self._next_check

    def preempt(
        self, running: Sequence[SequenceView], waiting: Sequence[SequenceView], *, within_callers: bool
    ) -> Preempted:
        """Return the sequences whose turns have ended, and the requests that are admitted first."""
        now = self._now()
        self._next_check = now + TURN_SECONDS / CHECKS_PER_TURN
        overdue = [sequence for sequence in waiting if now - self._since(sequence) >= TURN_SECONDS]
        candidates = [sequence for sequence in running if self._has_ended(sequence, now)]
        if within_callers:
            return self._within_callers(running, overdue, candidates)
        return self._by_time(max(sequence.request.priority for sequence in waiting), overdue, candidates)

    def _by_time(self, urgency: int, overdue: list[SequenceView], ended: list[SequenceView]) -> Preempted:
        """Preempt the longest turns in favour of requests that are at least as urgent and have waited as long.

        ``urgency`` is the highest priority of the waiting requests, whether they have waited as long or not.
        """
        overdue = sorted((other for other in overdue if other.request.priority == urgency), key=self._since)
        ended = sorted((other for other in ended if other.request.priority <= urgency), key=self._since)
        return ended[: len(overdue)], overdue

    def _within_callers(
        self, running: Sequence[SequenceView], overdue: list[SequenceView], candidates: list[SequenceView]
    ) -> Preempted:
        """Preempt a sequence in favour of one of the same caller, or of a caller of which no sequence runs.

        The policy decides which request runs in the second case: that caller may have been served more than others
        that wait.
        """
        held = Counter(sequence.request.caller for sequence in running)
        ended: list[SequenceView] = []
        first: list[SequenceView] = []
        for sequence in sorted(overdue, key=lambda other: (-other.request.priority, self._since(other))):
            if not candidates:
                break
            caller, has_none = sequence.request.caller, not held[sequence.request.caller]
            allowed = [other for other in candidates if has_none or _may_replace(sequence, other)]
            if not allowed:
                continue
            victim = min(allowed, key=lambda other: (-held[other.request.caller], self._since(other)))
            candidates.remove(victim)
            held[victim.request.caller] -= 1
            held[caller] += 1
            ended.append(victim)
            if not has_none:
                first.append(sequence)
        return ended, first

    def _since(self, sequence: SequenceView) -> float:
        turn: Turn = sequence.extras[self]
        return turn.since

    def _has_ended(self, sequence: SequenceView, now: float) -> bool:
        """Report whether the turn of a running sequence is over.

        It has then generated enough to outweigh that all of it is computed again.
        """
        turn: Turn = sequence.extras[self]
        if now - turn.since < TURN_SECONDS:
            return False
        return (sequence.generated - turn.generated) * TOKENS_PER_GENERATED >= len(sequence.tokens)


def _may_replace(waiting: SequenceView, running: SequenceView) -> bool:
    """Report whether a waiting sequence may preempt a running one of the same caller."""
    return running.request.caller == waiting.request.caller and running.request.priority <= waiting.request.priority


def build(context: ExtensionContext) -> TimeSlices:
    """Return the extension."""
    return TimeSlices()
