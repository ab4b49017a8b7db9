"""An engine client that restarts its engine when it dies."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from sglang_plug.contracts.request import Output, Request, RequestError
from sglang_plug.contracts.serving.observer import StepStats

from .client import EngineClient, EngineError

logger = logging.getLogger(__name__)

LOAD, UNLOAD = "load_adapter", "unload_adapter"
"""Control calls whose effect outlives an engine, besides ``update_weights``."""


class AdapterCalls:
    """The adapters loaded and unloaded since the start, as the fewest calls that repeat the effect."""

    def __init__(self) -> None:
        self._calls: dict[str, list[tuple[str, dict[str, Any]]]] = {}

    def note(self, name: str, arguments: dict[str, Any]) -> None:
        """Record a successful control call; calls other than loading and unloading are ignored."""
        if name not in (LOAD, UNLOAD):
            return
        adapter = arguments["adapter"]
        calls = self._calls.get(adapter, [])
        if name == LOAD:
            self._calls[adapter] = [*calls, (name, arguments)]
        elif calls and calls[0][0] == LOAD:  # the adapter was not configured at the start
            del self._calls[adapter]
        else:
            self._calls[adapter] = [(name, arguments)]

    async def repeat(self, client: EngineClient) -> None:
        """Repeat the calls on a new engine; an adapter that cannot be loaded any more is logged, and missing."""
        for name, arguments in [call for calls in self._calls.values() for call in calls]:
            try:
                await client.control(name, **arguments)
            except RequestError as error:
                logger.error("The engine is without an adapter that it had: %s", error)


class RestartingClient(EngineClient):
    """Replaces its engine when that fails; until the new one serves, every call is refused with ``retry_after``.

    Requests in flight end with the error of the failed engine. Updated weights are updated again, and listeners receive
    the new engine's steps.

    Args:
        make: makes a new client, not started.
        most: number of restarts within ``window`` seconds; one more failure is final.
        window: seconds.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        make: Callable[[], EngineClient],
        *,
        most: int,
        window: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._most, self._window, self._clock = make, most, window, clock
        self._client = make()
        self._listeners: list[Callable[[StepStats], None]] = []
        self._weights: dict[str, Any] | None = None
        self._adapters = AdapterCalls()
        self._restarts = deque[float]()
        self._start_seconds = 1.0
        self._watch: asyncio.Task[None] | None = None
        self._down: str | None = None
        self._final: str | None = None
        self._given_up = asyncio.Event()

    async def start(self) -> Mapping[str, Any]:
        """Start the engine, see ``EngineClient.start``; a first start that fails is not repeated."""
        began = self._clock()
        info = await self._client.start()
        self._start_seconds = self._clock() - began
        self._watch = asyncio.create_task(self._replace_failed())
        return info

    def submit(self, request: Request) -> AsyncIterator[Output]:
        """Hand a request over and iterate over its outputs; see ``EngineClient.submit``."""
        self._check()
        return self._client.submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call; see ``EngineClient.control``."""
        self._check()
        answer = await self._client.control(name, **arguments)
        if name == "update_weights":
            self._weights = arguments
        self._adapters.note(name, arguments)
        return answer

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step; see ``EngineClient.on_step``."""
        self._listeners.append(listener)
        self._client.on_step(listener)

    @property
    def failure(self) -> str | None:
        """The reason why the engine cannot serve, for now or for good."""
        if self._final is not None:
            return self._final
        reason = self._down or self._client.failure
        return f"{reason}; it is being started again" if reason is not None else None

    async def wait_failed(self) -> str:
        """Wait until the engine has failed too often; return the reason."""
        await self._given_up.wait()
        return self._final or ""

    @property
    def silent_for(self) -> float:
        """Seconds of silence of the current engine."""
        return self._client.silent_for

    def kill(self) -> None:
        """Kill the current engine."""
        self._client.kill()

    async def close(self) -> None:
        """Stop watching and close the engine; see ``EngineClient.close``."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._client.close()

    def _check(self) -> None:
        if (failure := self.failure) is not None:
            raise EngineError(failure, retry_after=None if self._final else math.ceil(self._start_seconds))

    async def _replace_failed(self) -> None:
        reason = await self._client.wait_failed()
        while self._may_restart():
            logger.error("The engine failed and is started again: %s", reason)
            self._down = reason
            reason = await self._restart() or await self._client.wait_failed()
        self._final = f"{reason}; it was started again {self._most} times in {self._window:g} seconds before"
        self._given_up.set()

    def _may_restart(self) -> bool:
        now = self._clock()
        while self._restarts and now - self._restarts[0] > self._window:
            self._restarts.popleft()
        if len(self._restarts) >= self._most:
            return False
        self._restarts.append(now)
        return True

    async def _restart(self) -> str | None:
        """Replace the failed engine by a new one; return the reason if that does not serve."""
        try:
            await self._client.close()
            self._client = self._make()
            await self._client.start()
            if self._weights is not None:
                await self._client.control("update_weights", **self._weights)
            await self._adapters.repeat(self._client)
        except Exception as error:  # of any kind: a server without an engine must not wait forever
            return f"it did not start: {error}"
        for listener in self._listeners:
            self._client.on_step(listener)
        self._down = None
        logger.info("The engine serves again")
        return None
