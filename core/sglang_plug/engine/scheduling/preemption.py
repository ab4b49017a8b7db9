"""Preemption of running sequences in favour of waiting ones, by the policy or by a step extension.

A preemptive policy is asked first, after arrivals and whenever a waiting sequence has found too few KV slots for a
while. The extension is asked where the policy preempts nothing. While waiting sequences lack neither a running slot nor
KV slots, but prompt tokens of a step, only running prompts are preempted: sequences that decode do not use what the
waiting ones lack.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from typing import Any

from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.serving.scheduling import PreemptivePolicy
from sglang_plug.engine.sequences.sequence import Sequence

RETRY_SECONDS, RETRY_STEPS = 0.05, 3
"""A preemptive policy is asked to make room once a waiting sequence has found too few KV slots for so long, and in so
many steps. Often a running sequence ends meanwhile, and nothing has to be computed again."""

LIMITED_SECONDS, LIMITED_CANDIDATES = 1.0, 4
"""Seconds between two searches for a sequence whose preemption lets a limited one run, and the limited ones of each."""

Admissible = Callable[[list[Sequence], list[Sequence]], list[Sequence]]
"""Returns the waiting sequences that limits let run together with running ones; takes both."""
Preempted = tuple[list[Sequence], list[Sequence]]
"""The running sequences that are preempted, and the waiting ones that are admitted first."""


class Preemption:
    """Asks which running sequences are preempted in favour of which waiting ones, and checks the answers.

    Args:
        now: the clock, in seconds.
        policy: the schedule policy, if it is preemptive.
        name: the policy as errors name it.
        extension: the step extension that preempts running sequences.
        extension_name: the extension as errors name it.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        policy: PreemptivePolicy | None = None,
        name: str = "the schedule policy",
        extension: PreemptionPhase | None = None,
        extension_name: str = "the step extension",
    ) -> None:
        self._now = now
        self._policy = policy
        self._name = name
        self._extension = extension or PreemptionPhase()
        self._extension_name = extension_name
        self._next_retry = self._next_limited = 0.0
        self._searched = 0
        """Number of limited sequences that were considered, which says with which one the next search begins."""
        self._changed = False
        self._failures = 0
        self.lacks_slots = False
        """True if waiting sequences lack a running slot or KV slots, and not the prompt tokens of a step."""
        self._stuck: Sequence | None = None
        """The waiting sequence that found too few KV slots in the last steps."""
        self._is_blocked = False
        """True if no waiting sequence could be admitted when preemption was last due, whatever was preempted."""

    @property
    def can_preempt(self) -> bool:
        """True if waiting sequences may go before running ones now."""
        return self._policy is not None and self._policy.can_preempt()

    @property
    def prevents_overlap(self) -> bool:
        """True if running sequences may be preempted before the next step, so that it should not be planned ahead."""
        return not self._is_blocked and self.is_due

    @property
    def is_due(self) -> bool:
        """Report whether it is time to check whether running sequences should be preempted."""
        return self._extension.preemption_due() or ((self._changed or self._is_stuck()) and self.can_preempt)

    def note_queued_or_admitted(self, sequence: Sequence) -> None:
        """Record that ``sequence`` was queued, for the first time or again, or admitted."""
        self._extension.queued_or_admitted(sequence)
        self._changed, self._is_blocked = True, False
        if sequence is self._stuck:
            self._stuck = None

    def allocation_failed(self, sequence: Sequence) -> None:
        """Note that a waiting sequence found too few KV slots."""
        if sequence is not self._stuck:
            self._stuck, self._failures, self._next_retry = sequence, 0, self._now() + RETRY_SECONDS
        self._failures += 1

    def preempt(
        self,
        running: list[Sequence],
        waiting: list[Sequence],
        free_running_slots: int = 0,
        admissible: Admissible = lambda waiting, running: waiting,
    ) -> Preempted:
        """Return the running sequences that are preempted, and the waiting ones that are admitted first.

        To be called while preemption ``is_due``. Raises ``RuntimeError`` for an answer with other sequences than these.

        Args:
            running: the first admitted first.
            waiting: the waiting sequences, in no particular order.
            free_running_slots: number of further sequences that may run.
            admissible: returns the waiting sequences that limits let run together with running ones.
        """
        candidates = admissible(waiting, running)
        answer = self._preempt(running, candidates, free_running_slots)
        if answer[0] or len(candidates) == len(waiting) or self._now() < self._next_limited:
            return answer
        self._next_limited = self._now() + LIMITED_SECONDS
        admissible_ids = set(map(id, candidates))
        limited = [sequence for sequence in waiting if id(sequence) not in admissible_ids]
        return self._preempt_for_limited(running, limited, admissible)

    def _preempt(self, running: list[Sequence], waiting: list[Sequence], free_running_slots: int) -> Preempted:
        """Choose sequences to preempt in favour of waiting ones that may all be admitted."""
        self._is_blocked = not waiting
        if not waiting:
            return [], []
        if can_preempt := self.can_preempt:
            assert self._policy is not None
            if not any(sequence is self._stuck for sequence in waiting):  # it has ended, or may not be admitted now
                self._stuck = None
            is_stuck = self._is_stuck()
            answer = self._policy.preempt(running, waiting, 0 if is_stuck else free_running_slots)
            preempted, admitted_first = _checked(answer, running, waiting, self._name)
            self._stuck = None if is_stuck else self._stuck
            self._changed = False
            if preempted or not self._extension.preemption_due():
                return preempted, admitted_first
        if not self.lacks_slots:
            running = [sequence for sequence in running if sequence.computes_prompt]
        chosen = self._extension.preempt(running, waiting, within_callers=can_preempt)
        return _checked(chosen, running, waiting, self._extension_name)

    def _preempt_for_limited(
        self, running: list[Sequence], limited: list[Sequence], admissible: Admissible
    ) -> Preempted:
        """Choose a sequence whose preemption lets one of the ``limited`` waiting ones run, and that one.

        Only the step extension decides.
        """
        for _ in range(min(LIMITED_CANDIDATES, len(limited))):
            sequence = limited[self._searched % len(limited)]
            self._searched += 1
            others = ([rest for rest in running if rest is not other] for other in running)
            victims = [other for other, rest in zip(running, others, strict=True) if admissible([sequence], rest)]
            if victims:
                answer = self._extension.preempt(victims, [sequence], within_callers=self.can_preempt)
                preempted, admitted_first = _checked(answer, victims, [sequence], self._extension_name)
                if preempted:
                    return preempted, admitted_first
        return [], []

    def _is_stuck(self) -> bool:
        return self._stuck is not None and self._failures >= RETRY_STEPS and self._now() >= self._next_retry


def _checked(
    answer: tuple[Ordered[Any], Ordered[Any]], running: list[Sequence], waiting: list[Sequence], name: str
) -> Preempted:
    """Return the engine's own sequences. Raises ``RuntimeError`` if others are named than those that were given."""
    preempted, admitted_first = answer
    if not preempted:
        return [], []
    known = {id(sequence): sequence for sequence in running}
    queued = {id(sequence): sequence for sequence in waiting}
    preempted_ids = dict.fromkeys(map(id, preempted))
    first_ids = dict.fromkeys(map(id, admitted_first))
    if not (preempted_ids.keys() <= known.keys() and first_ids.keys() <= queued.keys()):
        raise RuntimeError(f"{name}: preempt() must return some of the given running sequences, then some waiting ones")
    return [known[number] for number in preempted_ids], [queued[number] for number in first_ids]


def moved_to_front(first: list[Sequence], order: list[Sequence]) -> list[Sequence]:
    """Return ``order`` with the sequences of ``first`` that are in it at its head, in their own order."""
    ordered_ids = set(map(id, order))
    first_ids = set(map(id, first))
    return [
        *(sequence for sequence in first if id(sequence) in ordered_ids),
        *(sequence for sequence in order if id(sequence) not in first_ids),
    ]
