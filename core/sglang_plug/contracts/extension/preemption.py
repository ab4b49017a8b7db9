"""The phase of step extensions that preempt running sequences in favour of waiting ones, for instance by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .views import SequenceView


class PreemptionPhase:
    """The preemption of running sequences. Override what is needed; one extension at most has this phase.

    It applies to every schedule policy. One that is a ``PreemptivePolicy`` is asked first. What a preempted sequence
    has computed stays in the prefix cache until it is evicted, so it soon continues where it was.
    """

    def queued_or_admitted(self, sequence: SequenceView) -> None:
        """Learn that ``sequence`` waits from now on, queued for the first time or again, or was admitted and runs."""

    def preemption_due(self) -> bool:
        """Report whether ``preempt`` should be called now. Called in every step while sequences wait: answer quickly.

        No step is planned ahead while this is true.
        """
        return False

    def preempt(
        self, running: Sequence[SequenceView], waiting: Sequence[SequenceView], *, within_callers: bool
    ) -> tuple[Sequence[SequenceView], Sequence[SequenceView]]:
        """Return the running sequences that are preempted, and the waiting ones that are admitted first.

        Args:
            running: the first admitted first. While waiting sequences lack neither a running slot
                (``--max-running-requests``) nor KV slots, but prompt tokens of a step, only those whose prompts are not
                computed to the end.
            waiting: in no particular order.
            within_callers: the schedule policy shares the running slots between callers now, so a sequence should be
                preempted only in favour of one of the same caller. More sequences may be preempted than waiting ones
                are named: the policy decides which waiting sequences run instead.
        """
        return [], []
