"""The queue in the conformance test of step extensions; see ``check_step_extension``."""

from __future__ import annotations

from sglang_plug.contracts.extension.queueing import QueuePhase, QueueView
from sglang_plug.contracts.extension.views import SequenceView
from sglang_plug.contracts.request import RequestError


class CheckedQueueing(QueuePhase):
    """Passes calls on to an extension, and checks its answers.

    Args:
        queueing: the extension.
    """

    def __init__(self, queueing: QueuePhase) -> None:
        self._queueing = queueing

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        running = [*queue.running]
        self._queueing.queued(sequence, queue)
        assert [*queue.running] == running, "queued() changed the list of running sequences"

    def end_waiting(self) -> list[tuple[SequenceView, RequestError]]:
        """Return what the extension returns, if it is sequences with errors."""
        answer = list(self._queueing.end_waiting())
        for pair in answer:
            assert isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], RequestError), (
                f"end_waiting() must return pairs of a sequence and a RequestError, not {pair!r}"
            )
            assert hasattr(pair[0], "request"), f"end_waiting() names {pair[0]!r}, which is not a sequence"
        return answer
