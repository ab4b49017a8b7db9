"""Repeat tests that have to act while a server is in a certain state, if they were too late.

A machine may stand still for seconds between any two lines of a test. Such a scene proves nothing then, neither that
the server is right nor that it is wrong; one that is late every time fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx

TIMES = 5

Scene = TypeVar("Scene", bound=Callable[..., Any])


class TooLate(AssertionError):
    """The state of the server that a test needs was over before the test could observe it."""


def in_time(holds: Any, description: str) -> None:
    """Raises ``TooLate`` unless ``holds``."""
    if not holds:
        raise TooLate(f"over before the test came to it, {TIMES} times: {description}")


def wait_in_time(holds: Callable[[], Any], description: str, seconds: float = 30.0) -> Any:
    """Poll ``holds`` until it returns a true value, and return that. Raises ``TooLate`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (answer := holds()):
        in_time(time.monotonic() < deadline, description)
        time.sleep(0.005)
    return answer


@contextlib.contextmanager
def within(seconds: float, description: str) -> Iterator[None]:
    """Raise ``TooLate`` instead of errors of closed connections if the block took longer than ``seconds``."""
    begun = time.monotonic()
    try:
        yield
    except (httpx.TransportError, asyncio.IncompleteReadError, ConnectionError) as error:
        if time.monotonic() - begun < seconds:
            raise
        raise TooLate(f"over before the test came to it, {TIMES} times: {description}") from error


def replayed(test: Scene) -> Scene:
    """Run a test up to ``TIMES`` times, until it does not raise ``TooLate``."""
    attempts = range(TIMES - 1)
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def later(*arguments: Any, **named: Any) -> None:
            for _ in attempts:
                with contextlib.suppress(TooLate):
                    await test(*arguments, **named)
                    return
            await test(*arguments, **named)

        return later  # type: ignore[return-value]

    @functools.wraps(test)
    def sooner(*arguments: Any, **named: Any) -> None:
        for _ in attempts:
            with contextlib.suppress(TooLate):
                test(*arguments, **named)
                return
        test(*arguments, **named)

    return sooner  # type: ignore[return-value]
