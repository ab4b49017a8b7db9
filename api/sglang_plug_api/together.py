"""Several things done at the same time, of which one may fail."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def together(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """What all of ``work`` returns; the first failure ends the rest, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
