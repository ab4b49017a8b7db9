"""Concurrent work of which one part may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def shielded(work: Coroutine[Any, Any, Result]) -> Result:
    """Await ``work``; a cancellation takes effect only once it is done."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


async def stop_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that still run and wait until they have ended; the errors of others were reported already."""
    for task in tasks:
        if not task.done():
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all of ``work`` concurrently and return the results; the first failure cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
