"""The watchdog, and the step extensions that it calls in its thread."""

from __future__ import annotations

import threading

import pytest

from sglang_plug import BlockingRequest, StepExtension, WatchdogPhase
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.watchdog import Heartbeat, find_blocking_request, run_checks, watch


def test_a_step_without_end_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    heartbeat, messages, reported = Heartbeat(), list[str](), threading.Event()

    def stuck(text: str) -> None:
        messages.append(text)
        reported.set()

    with heartbeat:
        stop = watch(heartbeat, 0.05, stuck)
        assert reported.wait(240)
    stop.set()
    assert len(messages) == 1 and "--watchdog-timeout" in messages[0]


def test_time_between_steps_does_not_count() -> None:
    heartbeat = Heartbeat()
    assert heartbeat.busy_for == 0.0
    with heartbeat:
        assert heartbeat.busy_for >= 0.0
    assert heartbeat.busy_for == 0.0


def test_long_steps_are_checked_and_the_heartbeat_runs_always() -> None:
    heartbeat, checked, alive = Heartbeat(), threading.Event(), threading.Event()
    stop = watch(heartbeat, 60, lambda text: None, check=checked.set, alive=alive.set)
    assert alive.is_set(), "not only once another thread has had its turn"
    alive.clear()
    assert alive.wait(240) and not checked.is_set()
    with heartbeat:
        assert checked.wait(240)
    stop.set()


BLOCKING = BlockingRequest("a", "the grammar of request 'a'", "too slow")


class Watches(StepExtension, WatchdogPhase):
    def __init__(self, blocking: BlockingRequest | None = None, *, fails: bool = False) -> None:
        self.blocking, self.fails, self.looked = blocking, fails, 0

    def check_step(self) -> None:
        self.looked += 1
        if self.fails:
            raise KeyError("check_step")

    def blocking_request(self) -> BlockingRequest | None:
        if self.fails:
            raise KeyError("blocking_request")
        return self.blocking


def test_all_extensions_look_even_if_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    watches = [Watches(fails=True), Watches()]
    run_checks(extension_points({str(number): watcher for number, watcher in enumerate(watches)}).watchdog)
    assert [watcher.looked for watcher in watches] == [1, 1]
    assert "a step extension failed in the watchdog's thread" in caplog.text


def test_the_first_known_request_is_blamed() -> None:
    watches = {"fails": Watches(fails=True), "idle": Watches(), "knows": Watches(BLOCKING)}
    assert find_blocking_request(extension_points(watches).watchdog) == BLOCKING
    assert find_blocking_request(extension_points({"idle": Watches()}).watchdog) is None
    assert find_blocking_request(extension_points({}).watchdog) is None
