"""Limits the prompt tokens of a step beside sequences that decode, so that their next tokens are not late.

A fixed number of prompt tokens takes whatever it takes: on a slow device, or with long contexts, sequences that decode
wait for seconds while prompts arrive. Here a step has a time, and as many prompt tokens as fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from typing import Any

from .scheduled_chunk import ScheduledChunk
from .step_time import StepTimeModel, StepWork

DECODE_MULTIPLE = 20.0
"""Time of a step with prompt tokens, in decode steps of the sequences that decode, if the target is automatic. Every
step reads the weights once, which takes about as long as a decode step, so this costs a twentieth of the throughput."""
LEAST_SECONDS = 0.05
"""Least time of a step with an automatic target: readers do not notice a shorter delay."""
LEAST_TOKENS, LEAST_AUTOMATIC = 16, 64
"""Prompt tokens that a step may always have, so that prompts advance whatever the time is; more with an automatic
target, which must not cost much throughput on a machine that others slow down."""
FIRST_TOKENS = 64
"""Most prompt tokens beside decoding sequences before the duration of such a step is known."""
GROWTH = 4
"""A step has at most this many times the prompt tokens of the largest step observed so far."""
OBSERVE_EVERY = 8
"""Of steps without prompt tokens, one in this many is observed, once enough of them were."""
AUTOMATIC, FIXED, OFF = "automatic", "fixed", "off"
"""How the time of a step is chosen: a multiple of the decode step, a configured number, or not at all."""


class StepRoom:
    """The prompt tokens that still fit into a step.

    Args:
        budget: most tokens that the step may still have.
        work: what is planned so far.
        model: predicts durations; ``None``: without a limit.
        seconds: time of the step.
        least: prompt tokens that the step may have whatever the time is.
    """

    def __init__(
        self, budget: int, work: StepWork, model: StepTimeModel | None, seconds: float, least: int = LEAST_TOKENS
    ) -> None:
        self.budget = budget
        self._work, self._model, self._seconds, self._least = work, model, seconds, least
        self._full = False

    def tokens(self, start: int) -> int:
        """Return how many prompt tokens after ``start`` others the step may have; 0 or less if it is full."""
        if self._model is None or self.budget <= 0:
            return self.budget
        least = 0 if self._work.prefill_tokens else min(self._least, self.budget)
        if self._full:
            return least
        bound = GROWTH * self._model.largest_prefill if self._model.knows_prefill else FIRST_TOKENS
        room = max(FIRST_TOKENS, bound) - self._work.prefill_tokens
        if self._model.knows_prefill:
            room = int(min(room, self._model.prefill_tokens(self._work, start, self._seconds)))
        self._full = room < LEAST_TOKENS
        return max(least, min(room, self.budget))

    def add(self, start: int, count: int) -> None:
        """Note that the step computes ``count`` prompt tokens after ``start`` others."""
        self.budget -= count
        if self._model is not None:
            self._work.add_prefill(start, count)

    def add_drafts(self, start: int, count: int) -> bool:
        """Note ``count`` draft tokens after ``start`` others; False if they do not fit beside the prompts of the step.

        A step without prompts is not limited: drafts are there to make it worth its time.
        """
        if self._model is None or not self._work.prefill_tokens:
            return True
        if self._model.prefill_tokens(self._work, start, self._seconds) < count:
            return False
        self._work.add_drafts(start, count)
        return True


class PrefillPace:
    """Decides how many prompt tokens a step has, and learns how long steps take.

    Args:
        target: seconds that a step may take beside sequences that decode; ``None``: ``DECODE_MULTIPLE`` decode steps,
            and at least ``LEAST_SECONDS``; 0: without a limit.
    """

    def __init__(self, target: float | None = 0.0) -> None:
        self._target = target
        self._model = StepTimeModel()
        self._unobserved = 0
        self.mode = AUTOMATIC if target is None else FIXED if target else OFF
        self.target_seconds = LEAST_SECONDS if target is None else target
        """Time of the last step in which sequences decoded and prompts waited, or of the first such step at least; 0:
        without a limit."""

    def room(self, budget: int, decoding: Ordered[ScheduledChunk]) -> StepRoom:
        """Return the room for at most ``budget`` prompt tokens beside ``decoding``, the chunks planned so far."""
        work = StepWork()
        if self._target == 0 or not decoding or not self._model.knows_decode:
            return StepRoom(budget, work, None, 0.0)
        for chunk in decoding:
            work.add_decode(chunk.end)
        seconds, least = self._target, LEAST_TOKENS
        if seconds is None:
            least = LEAST_AUTOMATIC
            decode_seconds = self._model.decode_seconds(work.decode_rows, work.decode_context)
            seconds = max(LEAST_SECONDS, DECODE_MULTIPLE * decode_seconds)
        self.target_seconds = seconds
        return StepRoom(budget, work, self._model, seconds, least)

    def observe(self, chunks: Ordered[ScheduledChunk], has_prompts: bool, seconds: float) -> None:
        """Learn that a step of ``chunks``, which are not committed yet, took ``seconds``."""
        if self._target == 0:
            return
        if not has_prompts:
            self._unobserved += 1
            if self._unobserved < OBSERVE_EVERY and self._model.trusts_decode:
                return
            self._unobserved = 0
        self._model.observe(work_of(chunks), seconds)

    def coefficients(self) -> dict[str, float]:
        """Return what was learned, by name; empty if nothing is learned because steps have no limit."""
        return {} if self._target == 0 else self._model.coefficients()

    def info(self) -> dict[str, Any]:
        """Return the time of a step and the learned coefficients, as plain data for ``/server_info``."""
        return {
            "target_itl": self.mode,
            "target_seconds": self.target_seconds,
            "coefficients": self.coefficients(),
        }


def work_of(chunks: Iterable[ScheduledChunk]) -> StepWork:
    """Return the work in a step of ``chunks``, which are not committed yet."""
    work = StepWork()
    for chunk in chunks:
        if chunk.count > chunk.sequence.last_step_len:
            work.add_prefill(chunk.start, chunk.count)
        else:
            work.add_decode(chunk.end)
        if chunk.drafts:
            work.add_drafts(chunk.end, len(chunk.drafts))
    return work
