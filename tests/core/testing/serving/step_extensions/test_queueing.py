"""The conformance test finds faults of extensions that decide which requests may wait."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pytest

from sglang_plug import AdmissionPhase, QueuePhase, QueueView, Request, RequestError, SequenceView, StepExtension
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.schedule.deadlines import Deadlines

LATE = Request(id="late", tokens=(1, 2), deadline=time.time() - 10)


def test_deadlines_keep_the_contract() -> None:
    soon, later = time.time() + 3000, time.time() + 4000
    check_step_extension(Deadlines(), fields={"deadline": [None, later, soon]}, refused=[LATE])


class Remembers(StepExtension, AdmissionPhase, QueuePhase):
    """A correct extension, which knows the open requests and names only running ones to be ended."""

    def __init__(self) -> None:
        self.open: list[SequenceView] = []
        self.begun: list[int] = []

    def admit(self, sequence: SequenceView) -> None:
        self.open.append(sequence)

    def finished(self, sequence: SequenceView) -> None:
        self.open = [other for other in self.open if other is not sequence]

    def ended(self) -> Iterable[Any]:
        """Yield the sequences with output, which the engine does not end because they do not wait."""
        return [(sequence, RequestError("too late")) for sequence in self.open if sequence.generated]

    def end_waiting(self) -> Any:
        ended = list(self.ended())
        self.begun.append(len(ended))
        return ended


def test_sequences_that_have_begun_may_be_named() -> None:
    extension = Remembers()
    check_step_extension(extension)
    assert max(extension.begun) > 1


class RefusesInQueue(Remembers):
    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        if len(queue.running) > 1:
            raise RequestError("the server is busy", 503)


class EndsAll(Remembers):
    def ended(self) -> Iterable[Any]:
        return [(sequence, RequestError("too late")) for sequence in self.open]


class NamesRequests(Remembers):
    def ended(self) -> Iterable[Any]:
        return [(sequence.request.id, RequestError("too late")) for sequence in self.open]


class GivesNoError(Remembers):
    def ended(self) -> Iterable[Any]:
        return [(sequence, "too late") for sequence in self.open]


class GivesSequences(Remembers):
    def ended(self) -> Iterable[Any]:
        return self.open


class TakesFromRunning(Remembers):
    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        if queue.running:
            assert isinstance(queue.running, list)
            queue.running.pop()


@pytest.mark.planted_bug("step-extension")
@pytest.mark.parametrize(
    ("extension", "message"),
    [
        (RefusesInQueue(), "was refused when it was queued: the server is busy"),
        (EndsAll(), "was ended while it waited: too late"),
        (NamesRequests(), r"end_waiting\(\) names '0', which is not a sequence"),
        (GivesNoError(), r"end_waiting\(\) must return pairs of a sequence and a RequestError"),
        (GivesSequences(), r"end_waiting\(\) must return pairs of a sequence and a RequestError"),
        (TakesFromRunning(), r"queued\(\) changed the list of running sequences"),
    ],
)
def test_a_broken_rule_is_named(extension: StepExtension, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_step_extension(extension)
