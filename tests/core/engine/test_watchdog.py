from __future__ import annotations

import threading

import pytest

from sglang_plug.engine.watchdog import Heartbeat, watch


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
