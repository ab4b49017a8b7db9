"""Tests of the client that replaces a failed engine, with engines whose failures are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest

from sglang_plug import Output, Request, RequestError, SamplingParams, StepStats
from sglang_plug.contracts.serving.engine_client import EngineClient, EngineError
from sglang_plug_api.engine_clients.replicas.restart import RestartingClient

from .scripted_replica import step


class Mortal(EngineClient):
    """An engine client that fails when ``die`` is called."""

    def __init__(self) -> None:
        self.closed = False
        self.controls: list[tuple[str, dict[str, Any]]] = []
        self.listeners: list[Callable[[StepStats], None]] = []
        self.reason: str | None = None
        self.dead = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.start_error: Exception | None = None
        self.control_error: Exception | None = None
        self.info = {"model": "m"}

    async def start(self) -> Mapping[str, Any]:
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        return self.info

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        yield Output(id=request.id)

    async def control(self, name: str, **arguments: Any) -> Any:
        if self.control_error is not None:
            raise self.control_error
        self.controls.append((name, arguments))
        return len(self.controls)

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self.listeners.append(listener)

    @property
    def failure(self) -> str | None:
        return self.reason

    async def wait_failed(self) -> str:
        await self.dead.wait()
        return self.reason or ""

    async def close(self) -> None:
        self.closed = True

    def step(self, **changes: Any) -> None:
        for listener in self.listeners:
            listener(step(**changes))

    def die(self, reason: str = "signal 9") -> None:
        self.reason = reason
        self.dead.set()


class Family:
    """The client that restarts engines, and the engines that it started one after the other."""

    def __init__(self, max_restarts: int = 3, window: float = 600.0) -> None:
        self.engines: list[Mortal] = []
        self.prepare: Callable[[Mortal], None] = lambda engine: None
        self.now = 0.0
        self.client = RestartingClient(self._make, max_restarts=max_restarts, window=window, clock=lambda: self.now)

    def _make(self) -> Mortal:
        engine = Mortal()
        if self.engines:
            self.prepare(engine)
        self.engines.append(engine)
        return engine

    async def replaced(self, count: int) -> None:
        while len(self.engines) < count or self.client.failure is not None:
            await asyncio.sleep(0)


REQUEST = Request(id="a", tokens=(1,), params=SamplingParams())


async def test_a_new_engine_gets_the_listeners_and_weights_of_the_old_one() -> None:
    family = Family()
    client = family.client
    steps: list[StepStats] = []
    client.on_step(steps.append)
    assert await client.start() == {"model": "m"}
    await client.control("flush_cache")
    await client.control("update_weights", source="new", revision=None)
    family.engines[0].die()
    await family.replaced(2)
    first, second = family.engines
    assert first.closed and not second.closed
    assert second.controls == [("update_weights", {"source": "new", "revision": None})]
    second.step(running=5)
    assert steps[-1].running == 5
    assert [output.id async for output in client.submit(REQUEST)] == ["a"]
    assert await client.control("info") == 2
    await client.close()
    assert second.closed


async def test_while_it_starts_everybody_is_told_when_to_come_back() -> None:
    family = Family()
    family.prepare = lambda engine: engine.may_start.clear()
    await family.client.start()
    family.engines[0].die("signal 11")
    with pytest.raises(EngineError, match="signal 11; it is being started again"):  # before anybody noticed
        family.client.submit(REQUEST)
    while len(family.engines) < 2:
        await asyncio.sleep(0)
    for refused in (lambda: family.client.submit(REQUEST), lambda: family.client.control("info")):
        with pytest.raises(EngineError, match="signal 11; it is being started again") as error:
            await refused()
        assert error.value.retry_after is not None and error.value.retry_after >= 0
    assert family.client.failure is not None
    family.engines[1].may_start.set()
    await family.replaced(2)
    await family.client.close()


async def test_an_engine_that_has_failed_has_no_load_any_more() -> None:
    family = Family(max_restarts=1)
    family.prepare = lambda engine: engine.may_start.clear()
    steps: list[StepStats] = []
    family.client.on_step(steps.append)
    await family.client.start()
    first = family.engines[0]
    first.step(running=2, waiting=3, used_slots=151, cached_slots=40, capacity=200)
    first.die()
    first.step(running=7)  # sent before its death, and read after it
    while len(family.engines) < 2:
        await asyncio.sleep(0)
    first.step(running=8)
    assert [(stats.running, stats.waiting, stats.used_slots, stats.cached_slots) for stats in steps] == [
        (2, 3, 151, 40),
        (0, 0, 0, 0),
    ]
    family.engines[1].may_start.set()
    await family.replaced(2)
    family.engines[1].step(running=4)
    family.engines[1].die()
    await family.client.wait_failed()  # the client does not restart the engine again
    assert [stats.running for stats in steps] == [2, 0, 4, 0]
    await family.client.close()


async def test_a_listener_that_fails_does_not_prevent_the_restart() -> None:
    def fails(stats: StepStats) -> None:
        raise RuntimeError("no room on the disk")

    family = Family()
    family.client.on_step(fails)
    await family.client.start()
    family.engines[0].die()
    await family.replaced(2)
    await family.client.close()


async def test_a_new_engine_with_other_plugins_does_not_serve() -> None:
    def differ(engine: Mortal) -> None:
        if len(family.engines) < 3:
            engine.info = {"model": "m", "fingerprint": [["other", "other", "1"]]}

    family = Family()
    family.prepare = differ
    await family.client.start()
    family.engines[0].die()
    await family.replaced(4)
    assert [engine.closed for engine in family.engines] == [True, True, True, False]
    await family.client.close()


async def test_the_fourth_death_in_the_window_is_final() -> None:
    family = Family()
    await family.client.start()
    for count in (2, 3, 4):
        family.engines[-1].die()
        await family.replaced(count)
    family.engines[-1].die("signal 6")
    reason = await family.client.wait_failed()
    assert reason == family.client.failure == "signal 6; it was started again 3 times in 600 seconds before"
    assert len(family.engines) == 4
    with pytest.raises(EngineError, match="signal 6") as error:
        family.client.submit(REQUEST)
    assert error.value.retry_after is None
    await family.client.close()


async def test_deaths_that_are_far_apart_do_not_add_up() -> None:
    family = Family(max_restarts=1, window=10)
    await family.client.start()
    for count in (2, 3, 4):
        family.now += 11
        family.engines[-1].die()
        await family.replaced(count)
    await family.client.close()


@pytest.mark.parametrize("where", ["start", "weights"])
async def test_an_engine_that_cannot_start_again_ends_it(where: str) -> None:
    def spoil(engine: Mortal) -> None:
        if where == "start":
            engine.start_error = EngineError("out of memory")
        else:
            engine.control_error = RequestError("out of memory")

    family = Family()
    family.prepare = spoil
    await family.client.start()
    await family.client.control("update_weights", source="new")
    family.engines[0].die()
    assert "it did not start: out of memory" in await family.client.wait_failed()
    assert [engine.closed for engine in family.engines] == [True, True, True, False]
    await family.client.close()
    assert family.engines[-1].closed


async def test_a_first_start_that_fails_is_not_repeated() -> None:
    family = Family()
    family.engines[0].start_error = EngineError("no such model")
    with pytest.raises(EngineError, match="no such model"):
        await family.client.start()
    await family.client.close()
    assert len(family.engines) == 1


async def test_closing_while_it_starts_again() -> None:
    family = Family()
    family.prepare = lambda engine: engine.may_start.clear()
    await family.client.start()
    family.engines[0].die()
    while len(family.engines) < 2:
        await asyncio.sleep(0)
    await family.client.close()
    assert family.engines[1].closed


async def test_adapters_are_loaded_again() -> None:
    family = Family()
    client = family.client
    await client.start()
    for _ in range(3):
        await client.control("load_adapter", adapter="new", path="/new")
        await client.control("unload_adapter", adapter="new")
        await client.control("unload_adapter", adapter="first")
        await client.control("load_adapter", adapter="first", path="/other")
    await client.control("load_adapter", adapter="new", path="/newer")
    await client.control("unload_adapter", adapter="gone")
    family.engines[0].die()
    await family.replaced(2)
    assert family.engines[1].controls == [
        ("unload_adapter", {"adapter": "first"}),
        ("unload_adapter", {"adapter": "gone"}),
        ("load_adapter", {"adapter": "first", "path": "/other"}),
        ("load_adapter", {"adapter": "new", "path": "/newer"}),
    ]
    family.prepare = lambda engine: setattr(engine, "control_error", RequestError("no such folder"))
    family.engines[1].die()
    await family.replaced(3)
    assert client.failure is None
    await client.close()
