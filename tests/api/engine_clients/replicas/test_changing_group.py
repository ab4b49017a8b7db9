"""Tests of groups whose engines are added and removed while requests are served, with scripted engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sglang_plug import ConfigError, EngineError, Request, StepStats
from sglang_plug_api.engine_clients.replicas.changing_group import EngineGroup
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting

from .scripted_replica import ScriptedReplica, step

TIMEOUT = 20.0


class FirstOnly:
    """A routing policy that chooses the first candidate."""

    def choose(self, request: Request, replicas: object) -> int:
        assert isinstance(replicas, list)
        number: int = replicas[0].replica
        return number


def group() -> EngineGroup:
    return EngineGroup(CheckedRouting(FirstOnly(), "the policy"))  # type: ignore[arg-type]


async def answer(engines: EngineGroup, id: str) -> list[int]:
    request = Request(id=id, tokens=(1, 2))
    async with asyncio.timeout(TIMEOUT):
        return [token async for output in engines.submit(request) for token in output.tokens]


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not holds():
            await asyncio.sleep(0.01)


async def test_the_start_waits_for_the_first_engine() -> None:
    engines = group()
    starting = asyncio.create_task(engines.start())
    await asyncio.sleep(0)
    assert engines.failure is not None and not starting.done()
    with pytest.raises(EngineError, match="no engine serves") as refusal:
        await answer(engines, "early")
    assert refusal.value.retry_after  # an engine may be added later
    assert await engines.add(ScriptedReplica(0)) == 0
    assert (await starting)["architecture"] == "Scripted"
    assert engines.failure is None
    assert await answer(engines, "one") == [1, 2, 3]
    await engines.close()


async def test_an_engine_is_removed_after_its_requests_and_not_before_another_one_serves() -> None:
    engines, first, second = group(), ScriptedReplica(0, (1,)), ScriptedReplica(1, (2,))
    await engines.add(first)
    removing = asyncio.create_task(engines.remove(0))
    assert await answer(engines, "only one") == [1]
    assert not first.closed
    first.may_go_on.clear()
    running = asyncio.create_task(answer(engines, "running"))
    await until(lambda: "running" in first.requests)
    await engines.add(second)
    assert await answer(engines, "new") == [2]  # although the policy prefers the first
    assert not first.closed
    first.may_go_on.set()
    assert await running == [1]
    await removing
    assert first.closed and [status.replica for status in engines.replicas] == [1]
    await engines.remove(0)  # removing an unknown engine has no effect
    await engines.close()
    assert second.closed


async def test_an_engine_that_died_is_removed_at_once_and_its_number_is_used_again() -> None:
    engines, first, second = group(), ScriptedReplica(0), ScriptedReplica(1, (2,))
    await engines.add(first)
    await engines.add(second)
    first.die()
    await engines.remove(0)
    assert first.closed
    assert await answer(engines, "next") == [2]
    assert await engines.add(ScriptedReplica(2)) == 0


async def test_a_request_without_output_is_retried_when_its_engine_dies() -> None:
    engines, first, second = group(), ScriptedReplica(0), ScriptedReplica(1, (2,))
    await engines.add(first)
    await engines.add(second)
    first.may_go_on.clear()
    running = asyncio.create_task(answer(engines, "retried"))
    await until(lambda: "retried" in first.requests)
    first.die()
    assert await running == [2]


async def test_a_new_engine_gets_the_weights_and_the_listeners() -> None:
    engines, first = group(), ScriptedReplica(0)
    await engines.add(first)
    steps: list[StepStats] = []
    engines.on_step(steps.append)
    await engines.control("update_weights", source="/second")
    second = ScriptedReplica(1)
    assert await engines.add(second) == 1
    assert ("update_weights", {"source": "/second"}) in second.controls
    for listener in second.listeners:
        listener(step(running=3))
    assert [(stats.replica, stats.running) for stats in steps] == [(1, 3)]


async def test_an_engine_with_another_model_is_not_added() -> None:
    engines, stranger = group(), ScriptedReplica(1)
    await engines.add(ScriptedReplica(0))
    stranger.info["architecture"] = "Other"
    with pytest.raises(ConfigError, match="alike"):
        await engines.add(stranger)
    assert stranger.closed and len(engines.replicas) == 1
    broken = ScriptedReplica(2)
    broken.start_error = EngineError("it is gone")
    with pytest.raises(EngineError, match="gone"):
        await engines.add(broken)
    assert broken.closed
