"""Deadlines: requests that would miss theirs are refused before anything is computed for them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator

from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.serving.observer import StepStats

from .scheduler import Scheduler
from .sequence import Sequence

GATEWAY_TIMEOUT = 504
RATE_DECAY = 0.99
"""Factor by which the highest rate of prefill decays with every step that has some."""


class Deadlines:
    """Knows the deadlines of waiting requests, and estimates when a new request can begin.

    Args:
        now: the time, as ``time.time`` returns it.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Sequence]] = []
        self._serial = itertools.count()
        self._rate = 0.0
        """Prompt tokens per second, those from the prefix cache included: the highest rate of the last steps."""

    def observe(self, stats: StepStats) -> None:
        """Learn from a step how long prompts take."""
        tokens = stats.prefill_tokens + stats.cached_tokens
        if tokens and stats.seconds > 0:
            self._rate = max(self._rate * RATE_DECAY, tokens / stats.seconds)

    def add(self, sequence: Sequence, scheduler: Scheduler) -> RequestError | None:
        """Note the deadline of a sequence that has just been queued; return the refusal if it would be missed.

        Even if every prompt before it is computed at the highest rate, its first token would come too late.
        """
        assert sequence.deadline is not None
        now = self._now()
        if sequence.deadline <= now:
            return _refusal("it passed before the request was queued")
        seconds = self._estimate(sequence, scheduler)
        if now + seconds > sequence.deadline:
            return _refusal(f"the prompts in the queue before this one take about {seconds:.1f} seconds")
        heapq.heappush(self._heap, (sequence.deadline, next(self._serial), sequence))
        return None

    def passed(self) -> Iterator[tuple[Sequence, RequestError]]:
        """Yield the waiting sequences that were never computed and whose deadlines have passed, with their refusals."""
        while self._heap and self._heap[0][0] <= self._now():
            sequence = heapq.heappop(self._heap)[2]
            if sequence.cached is None and not sequence.ended:
                yield sequence, _refusal("it passed while the request waited in the queue")

    def _estimate(self, sequence: Sequence, scheduler: Scheduler) -> float:
        """Return the seconds until the prompt of ``sequence`` is computed: a lower bound, and 0 if nothing is known."""
        if not self._rate:
            return 0.0
        tokens = sum(len(one.tokens) - one.computed for one in scheduler.running if one.generated == 0)
        order = scheduler.policy.order(scheduler.waiting, scheduler.allocator.match)
        ahead = itertools.takewhile(lambda one: one is not sequence, order)
        if scheduler.turns.preempts:
            tokens = 0  # running prompts may be overtaken
        return (tokens + sum(len(one.tokens) for one in ahead) + len(sequence.tokens)) / self._rate


def _refusal(reason: str) -> RequestError:
    return RequestError(f"The deadline of the request cannot be met: {reason}.", GATEWAY_TIMEOUT)
