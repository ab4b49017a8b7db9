"""Components are started in order and stopped once in reverse order, and their failures are attributed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug.config import PluginError
from sglang_plug.plugins.lifecycle import STOP_SECONDS, TOTAL_STOP_SECONDS, ComponentLifecycle

INFO = {"version": "0"}


class Resource:
    """A component that records its calls."""

    def __init__(self, name: str, calls: list[Any], *, start: Any = None, stop: Any = None) -> None:
        self.name, self.calls, self._start, self._stop = name, calls, start, stop

    def on_start(self, info: Any) -> None:
        self.calls.append(("start", self.name, info))
        if self._start is not None:
            self._start()

    def on_stop(self) -> None:
        self.calls.append(("stop", self.name))
        if self._stop is not None:
            self._stop()


class AsyncResource(Resource):
    async def on_start(self, info: Any) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().on_start(info)

    async def on_stop(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().on_stop()


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.fixture
def calls() -> list[Any]:
    return []


@pytest.fixture
def lifecycle() -> ComponentLifecycle:
    return ComponentLifecycle()


@pytest.fixture(params=["thread", "loop"])
def run(request: pytest.FixtureRequest, lifecycle: ComponentLifecycle) -> Any:
    """Return ``run("start" or "stop")``, for a process without an event loop and for one with it."""

    def call(name: str) -> None:
        arguments = (INFO,) if name == "start" else ()
        if request.param == "thread":
            getattr(lifecycle, name)(*arguments)
        else:
            asyncio.run(getattr(lifecycle, f"{name}_async")(*arguments))

    return call


def test_the_order_of_stopping_is_reversed(run: Any, lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    for name in "abc":
        lifecycle.add(name, Resource(name, calls))
    lifecycle.add("plain", object())
    assert not calls
    run("start")
    assert calls == [("start", name, INFO) for name in "abc"]
    calls.clear()
    run("stop")
    run("stop")
    assert calls == [("stop", name) for name in "cba"]


def test_a_failed_start_stops_those_that_were_started(
    run: Any, lifecycle: ComponentLifecycle, calls: list[Any]
) -> None:
    for name, start in (("a", None), ("b", raising(OSError("taken"))), ("c", None)):
        lifecycle.add(name, Resource(name, calls, start=start))
    with pytest.raises(PluginError, match="b failed in on_start: .*taken"):
        run("start")
    run("stop")
    assert calls == [("start", "a", INFO), ("start", "b", INFO), ("stop", "a")]


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3), BaseException("panic")])
def test_a_failed_stop_is_attributed_and_the_others_are_stopped(
    error: BaseException, run: Any, lifecycle: ComponentLifecycle, calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    for name, stop in (("a", None), ("b", raising(error)), ("c", None)):
        lifecycle.add(f"observer {name!r}", Resource(name, calls, stop=stop))
    run("start")
    run("stop")
    assert calls[3:] == [("stop", "c"), ("stop", "b"), ("stop", "a")]
    (record,) = caplog.records
    assert record.getMessage() == f"observer 'b' failed in on_stop: {type(error).__name__}: {error}"


def test_stopping_does_not_wait_for_ever(
    run: Any, lifecycle: ComponentLifecycle, calls: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    go_on = threading.Event()
    for name, stop in (("a", None), ("b", go_on.wait), ("c", go_on.wait), ("d", go_on.wait), ("e", None)):
        lifecycle.add(name, Resource(name, calls, stop=stop))
    run("start")
    began = time.monotonic()
    try:
        run("stop")
        seconds = time.monotonic() - began
    finally:
        go_on.set()
    assert [call[1] for call in calls[5:]] == ["e", "d", "c", "b", "a"]
    assert [record.getMessage().split()[0] for record in caplog.records] == ["d", "c", "b"]
    assert seconds < TOTAL_STOP_SECONDS + STOP_SECONDS  # three hanging components would take longer one after the other


def test_async_methods_are_awaited_in_a_loop(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    async def serve() -> None:
        await lifecycle.start_async(INFO)
        await lifecycle.stop_async()

    lifecycle.add("a", AsyncResource("a", calls))
    lifecycle.add("b", Resource("b", calls))
    asyncio.run(serve())
    assert [call[:2] for call in calls] == [("start", "a"), ("start", "b"), ("stop", "b"), ("stop", "a")]


def test_async_methods_are_refused_without_a_loop(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    lifecycle.add("a", AsyncResource("a", calls))
    with pytest.raises(PluginError, match="a failed in on_start: TypeError: it is async, and this process"):
        lifecycle.start(INFO)


def test_a_cancelled_start_stops_those_that_were_started(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    class Waiting(AsyncResource):
        async def on_start(self, info: Any) -> None:  # type: ignore[override]
            await asyncio.Event().wait()

    async def serve() -> None:
        starting = asyncio.create_task(lifecycle.start_async(INFO))
        while not calls:
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    lifecycle.add("a", Resource("a", calls))
    lifecycle.add("b", Waiting("b", calls))
    asyncio.run(serve())
    assert [call[:2] for call in calls] == [("start", "a"), ("stop", "a")]


def test_a_component_that_is_made_later_is_started_at_once(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    lifecycle.start(INFO)
    lifecycle.add("a", Resource("a", calls))
    assert calls == [("start", "a", INFO)]
    with pytest.raises(PluginError, match="b failed in on_start: ValueError: no"):
        lifecycle.add("b", Resource("b", calls, start=raising(ValueError("no"))))
    lifecycle.stop()
    assert calls[-1] == ("stop", "a")


def test_a_component_that_is_made_after_the_end_is_not_started(
    run: Any, lifecycle: ComponentLifecycle, calls: list[Any]
) -> None:
    run("start")
    run("stop")
    lifecycle.add("a", Resource("a", calls))
    assert calls == []


def test_a_component_whose_start_outlasts_the_others_end_is_stopped(
    lifecycle: ComponentLifecycle, calls: list[Any]
) -> None:
    lifecycle.start(INFO)
    lifecycle.add("a", Resource("a", calls, start=lifecycle.stop))
    assert calls == [("start", "a", INFO), ("stop", "a")]


async def test_an_async_start_that_outlasts_the_others_end_is_stopped(
    lifecycle: ComponentLifecycle, calls: list[Any]
) -> None:
    class Slow(AsyncResource):
        async def on_start(self, info: Any) -> None:  # type: ignore[override]
            await lifecycle.stop_async()
            await super().on_start(info)

    lifecycle.add("a", Slow("a", calls))
    await lifecycle.start_async(INFO)
    assert calls == [("start", "a", INFO), ("stop", "a")]


async def test_a_second_async_stop_waits_for_the_first(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    class Slow(AsyncResource):
        async def on_stop(self) -> None:  # type: ignore[override]
            await asyncio.sleep(0.05)
            calls.append("stopped")

    lifecycle.add("a", Slow("a", calls))
    await lifecycle.start_async(INFO)
    first = asyncio.create_task(lifecycle.stop_async())
    await asyncio.sleep(0)
    await lifecycle.stop_async()
    assert calls[1:] == ["stopped"]
    await first


def test_two_threads_that_stop_both_find_everything_stopped(lifecycle: ComponentLifecycle, calls: list[Any]) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def stop_slowly() -> None:
        reached.set()
        go_on.wait()
        calls.append("stopped")

    lifecycle.add("a", Resource("a", calls, stop=stop_slowly))
    lifecycle.start(INFO)
    first = threading.Thread(target=lifecycle.stop)
    first.start()
    reached.wait()
    threading.Timer(0.05, go_on.set).start()
    lifecycle.stop()
    assert calls[1:] == [("stop", "a"), "stopped"]
    first.join()


def test_what_has_one_of_the_methods_only_is_served_too(run: Any, lifecycle: ComponentLifecycle) -> None:
    calls: list[str] = []

    class Starting:
        def on_start(self, info: Any) -> None:
            calls.append("start")

    class Stopping:
        on_start = None

        def on_stop(self) -> None:
            calls.append("stop")

    lifecycle.add("a", Starting())
    lifecycle.add("b", Stopping())
    run("start")
    run("stop")
    assert calls == ["start", "stop"]
