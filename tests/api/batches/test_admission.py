"""Tests of the admission of batch lines, which start only while no other requests wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from sglang_plug import ReplicaStatus, StepStats
from sglang_plug_api.batches.admission import AdmittedLine, BatchAdmission
from sglang_plug_api.text.text_engine import TextEngine


class Engine:
    """A stand-in for ``TextEngine`` and its client that reports given numbers of requests to the admission."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.client = self
        self.replicas = [ReplicaStatus(0, None, 0.0)]
        self._listener: Callable[[StepStats], None] | None = None

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        self._listener = listener

    def step(self, *, waiting: int, replica: int = 0) -> None:
        assert self._listener is not None
        numbers: dict[str, Any] = dict.fromkeys(StepStats.__dataclass_fields__, 0)
        self._listener(StepStats(**{**numbers, "waiting": waiting, "replica": replica}))


class Setting:
    """An admission, and the lines that it admitted, in order."""

    def __init__(self, *, limit: int = 100, capacity: int = 8) -> None:
        self.engine = Engine()
        self.closed = False
        self.admission = BatchAdmission(
            cast(TextEngine, self.engine), limit=limit, capacity=capacity, closed=lambda: self.closed
        )
        self.started: list[str] = []

    async def line(self, name: str, width: int = 1) -> None:
        await self.admission.enter(width)
        self.engine.in_flight += width
        self.started.append(name)

    async def lines(self, count: int) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self.line(str(number))) for number in range(count)]
        await settle()
        return tasks

    def end(self, width: int = 1) -> None:
        self.engine.in_flight -= width
        self.admission.leave(width)


async def settle() -> None:
    """Run the event loop until every task waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)


async def stop(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_an_idle_engine_gives_lines_half_of_its_running_slots() -> None:
    setting = Setting(capacity=8)
    tasks = await setting.lines(10)
    assert setting.started == ["0", "1", "2", "3"]
    setting.end()
    await settle()
    assert setting.started == ["0", "1", "2", "3", "4"]
    await stop(tasks)


async def test_the_option_is_a_bound_too() -> None:
    setting = Setting(capacity=100, limit=3)
    tasks = await setting.lines(10)
    assert len(setting.started) == 3
    await stop(tasks)


async def test_interactive_requests_run_instead_of_lines() -> None:
    setting = Setting(capacity=8)
    setting.engine.in_flight = 4
    tasks = await setting.lines(10)
    assert len(setting.started) == 2
    setting.engine.in_flight += 4  # full, and the two lines end
    setting.end()
    setting.end()
    await settle()
    assert len(setting.started) == 2
    setting.engine.in_flight = 0
    setting.engine.step(waiting=0)
    await settle()
    assert len(setting.started) == 6
    await stop(tasks)


async def test_nothing_starts_while_somebody_waits() -> None:
    setting = Setting(capacity=8)
    setting.engine.in_flight = 1
    setting.engine.step(waiting=1)
    tasks = await setting.lines(3)
    assert setting.started == []
    setting.engine.step(waiting=0)
    await settle()
    assert setting.started == ["0", "1", "2"]
    await stop(tasks)


async def test_what_waited_and_left_is_forgotten() -> None:
    setting = Setting()
    setting.engine.in_flight = 1
    setting.engine.step(waiting=1)
    setting.engine.in_flight = 0  # aborted: no step follows
    tasks = await setting.lines(1)
    assert setting.started == ["0"]
    await stop(tasks)


async def test_nothing_starts_while_somebody_waits_for_any_replica_that_serves() -> None:
    setting = Setting()
    setting.engine.replicas = [ReplicaStatus(0, None, 0.0), ReplicaStatus(1, None, 0.0)]
    setting.engine.in_flight = 1
    setting.engine.step(waiting=1, replica=1)
    setting.engine.step(waiting=0, replica=0)
    tasks = await setting.lines(1)
    assert setting.started == []
    setting.engine.replicas[1] = ReplicaStatus(1, "signal 9", 0.0)
    setting.engine.step(waiting=0, replica=0)
    await settle()
    assert setting.started == ["0"]
    await stop(tasks)


async def test_one_running_slot_is_enough() -> None:
    setting = Setting(capacity=1)
    tasks = await setting.lines(2)
    assert setting.started == ["0"]
    setting.end()
    await settle()
    assert setting.started == ["0", "1"]
    await stop(tasks)


async def test_a_line_wider_than_everything_runs_alone() -> None:
    setting = Setting(capacity=4, limit=4)
    tasks = [asyncio.create_task(setting.line("wide", 50)), asyncio.create_task(setting.line("next"))]
    await settle()
    assert setting.started == ["wide"]
    setting.end(50)
    await settle()
    assert setting.started == ["wide", "next"]
    await stop(tasks)


async def test_lines_start_in_the_order_they_came() -> None:
    setting = Setting(capacity=4)
    setting.engine.in_flight = 3
    tasks = [asyncio.create_task(setting.line("wide", 2)), asyncio.create_task(setting.line("narrow", 1))]
    await settle()
    assert setting.started == []  # the narrow line would fit, but lines start in order
    setting.engine.in_flight = 0
    setting.engine.step(waiting=0)
    await settle()
    assert setting.started[0] == "wide"
    await stop(tasks)


async def test_a_line_that_gives_up_holds_nothing() -> None:
    setting = Setting(capacity=1)
    setting.engine.in_flight = 1
    tasks = await setting.lines(1)
    await stop(tasks)
    assert setting.admission.held == 0
    setting.engine.in_flight = 0
    assert len(await setting.lines(1)) == 1
    assert setting.started == ["0"]


async def test_a_line_leaves_once_however_often_it_is_told_to() -> None:
    setting = Setting(capacity=4)
    line = AdmittedLine(setting.admission, 2)
    line.leave()
    assert setting.admission.held == 0
    for _ in range(2):
        await line.enter()
        assert setting.admission.held == 2
        line.leave()
        line.leave()
        assert setting.admission.held == 0


async def test_nothing_starts_while_the_server_stops() -> None:
    setting = Setting()
    setting.closed = True
    tasks = await setting.lines(2)
    assert setting.started == []
    await stop(tasks)
