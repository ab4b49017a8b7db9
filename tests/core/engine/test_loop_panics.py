"""A panic, a ``BaseException`` of a native library, ends the requests that it concerns, and not the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from sglang_plug import (
    AdmissionPhase,
    HoldPhase,
    MetricCounter,
    MetricsPhase,
    PlanningPhase,
    QueuePhase,
    QueueView,
    SequenceView,
    ServicePhase,
    StepExtension,
)
from sglang_plug.engine.messages.api_messages import Control, Reply
from sglang_plug.engine.sequences.launched_step import LaunchedStep
from tests.core.engine.test_loop import Bench


class Panic(BaseException):
    """A stand-in for pyo3's ``PanicException``."""


class Panicking(StepExtension, AdmissionPhase, HoldPhase, QueuePhase, PlanningPhase, ServicePhase, MetricsPhase):
    """A step extension that panics in one method while ``method`` is set."""

    def __init__(self, method: str) -> None:
        self.method: str | None = method
        self.admitted_ids, self.finished_ids = list[str](), list[str]()

    def _panic(self, method: str) -> None:
        if method == self.method:
            raise Panic(f"a panic in {method}")

    def admit(self, sequence: SequenceView) -> None:
        self._panic("admit")
        self.admitted_ids.append(sequence.request.id)

    def cache_key(self, sequence: SequenceView) -> str:
        self._panic("cache_key")
        return ""

    def finished(self, sequence: SequenceView) -> None:
        self.finished_ids.append(sequence.request.id)
        self._panic("finished")

    def hold(self, sequence: SequenceView) -> bool:
        self._panic("hold")
        return False

    def queued(self, sequence: SequenceView, queue: QueueView) -> None:
        self._panic("queued")

    def order(self, waiting: list[SequenceView], running: Sequence[SequenceView]) -> list[SequenceView]:
        self._panic("order")
        return waiting

    def controls(self) -> Mapping[str, Callable[..., Any]]:
        return {"call": lambda: self._panic("call")}

    def counters(self) -> Iterable[MetricCounter]:
        self._panic("counters")
        return ()


def panics(text: str) -> Callable[..., Any]:
    def panic(*_: Any) -> Any:
        raise Panic(text)

    return panic


@pytest.mark.parametrize("method", ["admit", "cache_key", "hold", "queued", "order"])
def test_a_panic_of_an_extension_ends_the_request(method: str) -> None:
    panicking = Panicking(method)
    bench = Bench(extensions={"panicking": panicking})
    bench.submit("a")
    bench.run()
    reason, status, message = bench.end("a")
    assert (reason, status) == ("error", 500) and f"a panic in {method}" in message
    panicking.method = None
    bench.submit("b")
    bench.run()
    assert bench.tokens("b") == [5] * 3
    assert panicking.finished_ids == panicking.admitted_ids


@pytest.mark.parametrize("method", ["finished", "counters"])
def test_a_panic_that_concerns_no_request_is_logged(method: str, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(extensions={"panicking": Panicking(method)})
    bench.submit("a")
    bench.run()
    assert bench.tokens("a") == [5] * 3 and f"a panic in {method}" in caplog.text


def test_a_panic_of_a_control_call_is_its_answer() -> None:
    bench = Bench(extensions={"panicking": Panicking("call")})
    bench.inbox.messages.append(Control(1, "call", {}))
    bench.loop.step()
    (reply,) = (message for message in bench.sent if isinstance(message, Reply))
    assert reply.status == 500 and "a panic in call" in (reply.error or "")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("place", ["launch", "results"])
def test_a_panic_of_a_step_ends_its_requests(place: str, overlap: bool) -> None:
    bench = Bench(overlap=overlap)
    launch = bench.device.launch
    if place == "launch":
        bench.device.launch = panics("a panic of the device")  # type: ignore[method-assign]
    else:
        step = LaunchedStep([], None, panics("a panic of the device"))
        bench.device.launch = lambda chunks, before=None: step  # type: ignore[method-assign]
    bench.submit("a")
    bench.run()
    reason, status, message = bench.end("a")
    assert (reason, status) == ("error", 500) and "a panic of the device" in message
    bench.device.launch = launch  # type: ignore[method-assign]
    bench.submit("b")
    bench.run()
    assert bench.tokens("b") == [5] * 3


def test_an_interrupt_ends_the_engine() -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    bench = Bench()
    bench.device.launch = interrupt  # type: ignore[method-assign]
    bench.submit("a")
    with pytest.raises(KeyboardInterrupt):
        bench.run()
