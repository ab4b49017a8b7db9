"""Observers that raise errors are named in the log, and do not affect requests."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from sglang_plug import Observer
from sglang_plug_api.observers.observer_guard import GuardedObserver
from sglang_plug_api.text.job import Job

METHODS: dict[str, tuple[Any, ...]] = {
    "on_step": (None,),
    "on_tokens": ("a", 1, 0.0),
    "on_request": (None,),
}


class Broken(Observer):
    def __init__(self) -> None:
        self.called: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name not in METHODS:
            return super().__getattribute__(name)

        def fail(*arguments: Any) -> None:
            self.called.append(name)
            raise ZeroDivisionError("no more")

        fail.__name__ = name
        return fail


def test_each_failing_method_is_reported_once_and_still_told(caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    shield = GuardedObserver("mine", broken)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            for name, arguments in METHODS.items():
                getattr(shield, name)(*arguments)
    assert broken.called == [*METHODS] * 3
    assert [record.message.count("failed in") for record in caplog.records] == [1] * len(METHODS)
    assert "observer 'mine'" in caplog.text and "Broken) failed in on_step" in caplog.text
    assert "ZeroDivisionError: no more" in caplog.text


async def test_a_request_ends_as_ever_though_an_observer_fails(text_engine: Any, caplog: Any) -> None:
    engine = text_engine(observers={"mine": Broken()})
    job = Job(tokens=[65], sampling=engine.defaults.complete({}, 1, 5))
    assert (await engine.complete(job)).ending is not None
    assert "observer 'mine'" in caplog.text
