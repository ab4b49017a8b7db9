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

    def began(self, sequence: SequenceView) -> None:
        """``sequence`` is queued from now on, for the first time or again, or it is admitted and runs from now on."""

    def exchange_due(self) -> bool:
        """Report whether ``exchange`` should be called now. Called in every step while sequences wait: answer quickly.

        No step is planned ahead while this is true.
        """
        return False

    def exchange(
        self, running: Sequence[SequenceView], waiting: Sequence[SequenceView], *, within_callers: bool
    ) -> tuple[Sequence[SequenceView], Sequence[SequenceView]]:
        """Return the running sequences that are preempted, and the waiting ones that are admitted first.

        Args:
            running: the first admitted first. While waiting sequences lack neither a place nor slots but prompt tokens
                of a step, only those whose prompts are not computed to the end.
            waiting: in no particular order.
            within_callers: the schedule policy shares the places between callers now, so places should change between
                sequences of one caller. More sequences may be preempted than waiting ones are named: the policy decides
                who gets their places.
        """
        return [], []
