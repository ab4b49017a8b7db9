"""The phase of step extensions that decide which requests may wait in the queue, for instance by their deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sglang_plug.contracts.request import RequestError

    from .views import SequenceView


class QueueView(Protocol):
    """The queue of an engine, and the sequences that run, as extensions see them."""

    @property
    def running(self) -> Sequence[SequenceView]:
        """The running sequences, the first admitted first."""

    @property
    def can_preempt(self) -> bool:
        """True if running sequences may be preempted in favour of waiting ones now, by the schedule policy."""

    def ahead_of(self, sequence: SequenceView) -> Iterable[SequenceView]:
        """Yield the waiting sequences that the schedule policy would admit before ``sequence`` now."""


class QueuePhase:
    """The requests that wait. Override the methods that are needed; the others do nothing."""

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        """``sequence`` is in the queue from now on, for the first time. Raise ``RequestError`` to refuse its request.

        Called after ``AdmissionPhase.admit``; much later if an extension with ``HoldPhase`` holds the request.
        """

    def end_waiting(self) -> Iterable[tuple[SequenceView, RequestError]]:
        """Return sequences that should wait no longer, and the errors that end their requests; called before each step.

        Sequences that are queued, held or paused may be named from their ``admit`` on. Those of which a part was
        computed already, or that are over, are left as they are.
        """
        return ()
