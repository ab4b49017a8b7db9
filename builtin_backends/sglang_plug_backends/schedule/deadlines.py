"""Deadlines: requests that would miss theirs are refused before anything is computed for them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable

from sglang_plug import (
    AdmissionPhase,
    ExtensionContext,
    QueuePhase,
    QueueView,
    RequestError,
    SequenceView,
    ServicePhase,
    StepExtension,
    StepStats,
)

GATEWAY_TIMEOUT = 504
SPARE = 64
"""Deadlines of requests that are over, besides one for each open one, up to which they are not looked for."""
RATE_DECAY = 0.99
"""Factor by which the highest rate of prefill decays with every step that has some."""


class Deadlines(StepExtension, AdmissionPhase, QueuePhase, ServicePhase):
    """Ends waiting requests whose deadlines have passed, and estimates when a new request can begin.

    Args:
        now: the time, as ``time.time`` returns it.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._heap: list[tuple[float, int]] = []
        """The deadlines of requests, with their numbers; also of some that are over."""
        self._open: dict[int, SequenceView] = {}
        """The sequences whose requests are open, by number."""
        self._numbers = itertools.count()
        self._rate = 0.0
        """Prompt tokens per second, those from the prefix cache included: the highest rate of the last steps."""

    def admit(self, sequence: SequenceView) -> None:
        """Refuse a request whose deadline has passed, and note the deadline of any other one."""
        deadline = sequence.request.deadline
        if deadline is None:
            return
        if deadline <= self._now():
            raise _refusal("it passed before the request reached the engine")
        number = sequence.extras[self] = next(self._numbers)
        self._open[number] = sequence
        heapq.heappush(self._heap, (deadline, number))

    def finished(self, sequence: SequenceView) -> None:
        """Forget the deadline, which may be far away."""
        self._open.pop(sequence.extras.get(self, -1), None)
        if len(self._heap) > 2 * len(self._open) + SPARE:
            self._heap = [entry for entry in self._heap if entry[1] in self._open]
            heapq.heapify(self._heap)

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        """Refuse a request whose deadline cannot be met.

        Even if every prompt before it is computed at the highest rate, its first token would come too late.
        """
        deadline, now = sequence.request.deadline, self._now()
        if deadline is None:
            return
        if deadline <= now:
            raise _refusal("it passed before the request was queued")
        seconds = self._estimate(sequence, queue)
        if now + seconds > deadline:
            raise _refusal(f"the prompts in the queue before this one take about {seconds:.2g} seconds")

    def end_waiting(self) -> list[tuple[SequenceView, RequestError]]:
        """Return the sequences whose deadlines have passed since the last call."""
        passed = []
        while self._heap and self._heap[0][0] <= self._now():
            sequence = self._open.get(heapq.heappop(self._heap)[1])
            if sequence is not None:
                passed.append((sequence, _refusal("it passed while the request waited to be computed")))
        return passed

    def step_done(self, stats: StepStats) -> None:
        """Learn from a step how long prompts take."""
        tokens = stats.prefill_tokens + stats.cached_tokens
        if tokens and stats.seconds > 0:
            self._rate = max(self._rate * RATE_DECAY, tokens / stats.seconds)

    def _estimate(self, sequence: SequenceView, queue: QueueView) -> float:
        """Return the seconds until the prompt of ``sequence`` is computed: a lower bound, and 0 if nothing is known."""
        if not self._rate:
            return 0.0
        tokens = len(sequence.tokens)
        if not queue.can_preempt:  # waiting prompts cannot precede running ones
            tokens += sum(len(other.tokens) - other.computed for other in queue.running if other.generated == 0)
        return (tokens + sum(len(other.tokens) for other in queue.ahead_of(sequence))) / self._rate


def _refusal(reason: str) -> RequestError:
    return RequestError(f"The deadline of the request cannot be met: {reason}.", GATEWAY_TIMEOUT)


def build(context: ExtensionContext) -> Deadlines:
    """Return the extension."""
    return Deadlines()
