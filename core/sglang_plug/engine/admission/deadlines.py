"""Deadlines: requests that would miss theirs are refused before anything is computed for them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator

from sglang_plug.contracts.request import RequestError
from sglang_plug.contracts.serving.observer import StepStats
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.scheduling.sequence import Sequence

GATEWAY_TIMEOUT = 504
LEAST_KEPT = 256
"""Number of deadlines up to which those of sequences that have begun are not looked for."""
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
        self._most = LEAST_KEPT
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
        self.watch(sequence)
        return None

    def check(self, deadline: float | None) -> None:
        """Raise ``RequestError`` if a deadline has passed; call it before anything is done for the request."""
        if deadline is not None and deadline <= self._now():
            raise _refusal("it passed before the request reached the engine")

    def watch(self, sequence: Sequence) -> None:
        """Let ``passed`` yield a sequence whose deadline passes before it is computed."""
        if sequence.deadline is None:
            return
        if len(self._heap) >= self._most:
            self._forget_begun()
        heapq.heappush(self._heap, (sequence.deadline, next(self._serial), sequence))

    def _forget_begun(self) -> None:
        """Forget sequences that were admitted or have ended, as their deadlines may be far away."""
        self._heap = [entry for entry in self._heap if _is_untouched(entry[2])]
        heapq.heapify(self._heap)
        self._most = max(LEAST_KEPT, 2 * len(self._heap))

    def passed(self) -> Iterator[tuple[Sequence, RequestError]]:
        """Yield the sequences that were never computed and whose deadlines have passed, with their refusals."""
        while self._heap and self._heap[0][0] <= self._now():
            sequence = heapq.heappop(self._heap)[2]
            if _is_untouched(sequence):
                yield sequence, _refusal("it passed while the request waited to be computed")

    def _estimate(self, sequence: Sequence, scheduler: Scheduler) -> float:
        """Return the seconds until the prompt of ``sequence`` is computed: a lower bound, and 0 if nothing is known."""
        if not self._rate:
            return 0.0
        tokens = 0
        if not scheduler.exchanges.preempts:  # running prompts cannot be overtaken
            tokens = sum(len(other.tokens) - other.computed for other in scheduler.running if other.generated == 0)
        order = scheduler.policy.order(scheduler.waiting, scheduler.allocator.match)
        ahead = itertools.takewhile(lambda other: other is not sequence, order)
        return (tokens + sum(len(other.tokens) for other in ahead) + len(sequence.tokens)) / self._rate


def _is_untouched(sequence: Sequence) -> bool:
    """Report whether nothing has been computed for ``sequence`` yet, and its request is still open."""
    return sequence.service.cached is None and not sequence.service.ended


def _refusal(reason: str) -> RequestError:
    return RequestError(f"The deadline of the request cannot be met: {reason}.", GATEWAY_TIMEOUT)
