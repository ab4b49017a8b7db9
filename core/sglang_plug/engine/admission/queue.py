"""The queue as step extensions see it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.engine.scheduling.scheduler import Scheduler
from sglang_plug.engine.scheduling.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Queue:
    """The waiting and the running sequences of a scheduler. A ``QueueView``."""

    scheduler: Scheduler

    @property
    def running(self) -> Ordered[Sequence]:
        """The running sequences, the first admitted first."""
        return self.scheduler.running

    @property
    def can_preempt(self) -> bool:
        """True if running sequences may be preempted in favour of waiting ones now."""
        return self.scheduler.preemption.can_preempt

    def ahead_of(self, sequence: SequenceView) -> Iterator[Sequence]:
        """Yield the waiting sequences that the schedule policy would admit before ``sequence`` now."""
        order = self.scheduler.policy.order([*self.scheduler.waiting], self.scheduler.allocator.match)
        return itertools.takewhile(lambda other: other is not sequence, order)
