"""Step extensions that decide which requests may wait in the queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    HoldPhase,
    PlanningPhase,
    QueuePhase,
    QueueView,
    RequestError,
    SequenceView,
    StepExtension,
)
from sglang_plug.engine.messages.api_messages import Abort, Pause, Resume
from tests.core.engine.test_loop import Bench


class LongestQueue(StepExtension, AdmissionPhase, QueuePhase):
    """Refuses a request if too many prompt tokens wait before it, and ends the requests that a test names."""

    def __init__(self, max_tokens: int = 100) -> None:
        self.max_tokens = max_tokens
        self.open: list[SequenceView] = []
        self.unwanted: list[SequenceView] = []
        self.finished_ids: list[str] = []

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        if sum(len(other.tokens) for other in queue.ahead_of(sequence)) > self.max_tokens:
            raise RequestError("too many tokens wait", 503)
        self.open.append(sequence)

    def finished(self, sequence: SequenceView) -> None:
        self.finished_ids.append(sequence.request.id)

    def end_waiting(self) -> list[tuple[SequenceView, RequestError]]:
        return [(sequence, RequestError("closing", 503)) for sequence in self.unwanted]


@pytest.fixture
def queue() -> LongestQueue:
    return LongestQueue()


@pytest.fixture
def bench(queue: LongestQueue) -> Bench:
    bench = Bench(max_queued=9, extensions={"queue": queue})
    for id in ("first", "second"):  # two running slots
        bench.submit(id, params={"max_new_tokens": 10})
    bench.loop.step()
    return bench


def test_a_request_may_be_refused_for_what_waits_before_it(bench: Bench, queue: LongestQueue) -> None:
    queue.max_tokens = 10
    bench.submit("third", tokens=[1] * 8, arrived=1.0)
    bench.submit("fourth", tokens=[1] * 8, arrived=2.0)
    bench.submit("fifth", tokens=[1] * 8, arrived=3.0)
    bench.run()
    assert bench.end("fifth") == ("error", 503, "too many tokens wait")
    assert bench.tokens("fifth") == [] and queue.finished_ids.count("fifth") == 1
    assert all(bench.end(id)[0] == "length" for id in ("first", "second", "third", "fourth"))


def test_only_those_that_wait_are_ended(bench: Bench, queue: LongestQueue) -> None:
    for id in ("third", "fourth", "paused"):
        bench.submit(id)
    bench.loop.step()
    bench.inbox.messages.append(Pause(("paused",)))
    bench.inbox.messages.append(Abort(("fourth",)))
    bench.loop.step()
    queue.unwanted = queue.open
    bench.run()
    assert bench.end("third") == bench.end("paused") == ("error", 503, "closing")
    assert bench.end("fourth")[0] == "abort" and bench.end("first")[0] == bench.end("second")[0] == "length"
    assert sorted(queue.finished_ids) == ["first", "fourth", "paused", "second", "third"]
    bench.inbox.messages.append(Resume(("paused",)))
    bench.loop.step()
    assert not bench.loop.busy


def test_a_new_request_with_the_id_of_one_that_is_over_is_not_ended(bench: Bench, queue: LongestQueue) -> None:
    bench.submit("third")
    bench.loop.step()
    bench.inbox.messages.append(Abort(("third",)))
    bench.loop.step()
    bench.run()
    queue.unwanted = [*queue.open]
    bench.submit("third", params={"max_new_tokens": 2})
    bench.run()
    assert bench.tokens("third") == [5, 5]


class RefusesOnce(StepExtension, AdmissionPhase, HoldPhase):
    """A step extension that refuses the first request, in the given method."""

    def __init__(self, method: str) -> None:
        self.method = method

    def _refuse(self, method: str) -> None:
        if self.method == method:
            self.method = ""
            raise RequestError("not the first", 503)

    def admit(self, sequence: SequenceView) -> None:
        self._refuse("admit")

    def hold(self, sequence: SequenceView) -> bool:
        self._refuse("hold")
        return False


class EndsWaiting(StepExtension, AdmissionPhase, QueuePhase):
    """A step extension that ends the first admitted sequence before each step, if it still waits."""

    def __init__(self) -> None:
        self.admitted: list[SequenceView] = []

    def admit(self, sequence: SequenceView) -> None:
        self.admitted.append(sequence)

    def end_waiting(self) -> list[tuple[SequenceView, RequestError]]:
        return [(sequence, RequestError("closing", 503)) for sequence in self.admitted[:1]]


@pytest.mark.parametrize("method", ["admit", "hold"])
def test_a_new_request_with_the_id_of_one_that_was_refused_is_not_ended(method: str) -> None:
    bench = Bench(extensions={"ends-waiting": EndsWaiting(), "refuses": RefusesOnce(method)})
    bench.submit("same")
    bench.loop.step()
    bench.submit("same", params={"max_new_tokens": 2})
    bench.run()
    assert bench.end("same") == ("error", 503, "not the first") and bench.tokens("same") == [5, 5]


class Reorders(StepExtension, PlanningPhase):
    """A step extension that returns the result of ``change`` instead of the waiting sequences."""

    def __init__(self, change: Callable[[list[SequenceView]], Any]) -> None:
        self.change = change

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> Any:
        return self.change(waiting)


@pytest.mark.parametrize("change", [lambda waiting: [*waiting, *waiting], lambda waiting: [*waiting, object()]])
def test_an_order_with_other_sequences_is_refused_by_name(change: Any) -> None:
    bench = Bench(extensions={"reorders": Reorders(change)})
    bench.submit("first")
    bench.loop.step()
    reason, status, message = bench.end("first")
    assert (reason, status) == ("error", 500)
    assert re.search(r"step-extension 'reorders': order\(\) must return a subset of the 1 given sequences", message)


def test_an_order_may_leave_out_sequences() -> None:
    bench = Bench(max_queued=5, extensions={"reorders": Reorders(lambda waiting: waiting[-1:])})
    for id in ("first", "second", "third"):
        bench.submit(id)
    bench.run()
    assert all(bench.end(id)[0] == "length" for id in ("first", "second", "third"))
