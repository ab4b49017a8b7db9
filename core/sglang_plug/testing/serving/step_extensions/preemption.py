"""Preemption in the conformance test of step extensions; see ``check_step_extension``."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from sglang_plug.contracts.extension.preemption import PreemptionPhase
from sglang_plug.contracts.extension.views import SequenceView

Preempted = tuple[Ordered[SequenceView], Ordered[SequenceView]]


class CheckedPreemption(PreemptionPhase):
    """Passes calls on to an extension, and checks which sequences it preempts.

    Args:
        extension: the extension.
    """

    def __init__(self, extension: PreemptionPhase) -> None:
        self._extension = extension
        self._alternates = False

    def queued_or_admitted(self, sequence: SequenceView) -> None:
        self._extension.queued_or_admitted(sequence)

    def preemption_due(self) -> bool:
        is_due = self._extension.preemption_due()
        assert isinstance(is_due, bool), f"preemption_due() must return True or False, not {is_due!r}"
        return is_due

    def preempt(
        self, running: Ordered[SequenceView], waiting: Ordered[SequenceView], *, within_callers: bool
    ) -> Preempted:
        """Ask in turns for preemption within callers and for any."""
        self._alternates = not self._alternates
        before = list(running), list(waiting)
        preempted, admitted_first = self._extension.preempt(running, waiting, within_callers=self._alternates)
        assert (list(running), list(waiting)) == before, "preempt() changed the lists that it was given"
        _check_some(preempted, running, "the preempted sequences")
        _check_some(admitted_first, waiting, "the waiting sequences that are admitted first")
        return preempted, admitted_first


def _check_some(answer: Ordered[SequenceView], allowed: Ordered[SequenceView], group: str) -> None:
    ids = [id(sequence) for sequence in answer]
    assert len(set(ids)) == len(ids), f"preempt() names one of {group} twice"
    assert set(ids) <= {id(sequence) for sequence in allowed}, f"preempt() names another sequence among {group}"
