"""The first task that fails cancels the others."""

from __future__ import annotations

import asyncio

import pytest

from sglang_plug_api.service.gather import gather, shielded


async def test_results_come_in_order() -> None:
    async def late(value: int) -> int:
        await asyncio.sleep(0.001 * (3 - value))
        return value

    assert await gather(map(late, range(3))) == [0, 1, 2]
    assert await gather([]) == []


async def test_the_first_failure_ends_the_rest() -> None:
    ended = list[bool]()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def fail() -> None:
        await asyncio.sleep(0)
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        await gather([wait(), fail(), wait()])
    assert ended == [True, True]


async def test_cancelling_ends_all() -> None:
    task = asyncio.ensure_future(gather([asyncio.sleep(60), asyncio.sleep(60)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_waits_for_work_that_is_not_interrupted() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    done = list[int]()

    async def work() -> int:
        begun.set()
        await may_end.wait()
        done.append(1)
        return 7

    task = asyncio.create_task(shielded(work()))
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [1]
    assert await shielded(work()) == 7
