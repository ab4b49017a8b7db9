"""An engine client that restarts its engine when it dies."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from sglang_plug import EngineClient, EngineError, Output, Request, StepStats

from .combined_replies import check_same
from .lasting_calls import Call, LastingCalls

logger = logging.getLogger(__name__)


class RestartingClient(EngineClient):
    """Replaces its engine when that fails; until the new one serves, every call is refused with ``retry_after``.

    Requests in flight end with the error of the failed engine. Updated weights are updated again, and listeners receive
    the new engine's steps. When the engine has failed they receive statistics without any load, since a gauge would
    otherwise show for ever what the last step of that engine said. A new engine that differs from the first one in what
    the API process relies on, such as its plugins, counts as one that did not start.

    Args:
        make: makes a new client, not started.
        max_restarts: number of restarts within ``window`` seconds; one more failure is final.
        window: seconds.
        clock: a monotonic clock in seconds.
        lasting: the calls to repeat on a new engine, which somebody else notes; ``None``: those of this client.
        failed: called when the engine has failed, before it is started again.
        restarted: called when a new engine serves.
        name: the engine's name at the beginning of log lines.
    """

    def __init__(
        self,
        make: Callable[[], EngineClient],
        *,
        max_restarts: int,
        window: float,
        clock: Callable[[], float] = time.monotonic,
        lasting: LastingCalls | None = None,
        failed: Callable[[], None] = lambda: None,
        restarted: Callable[[], None] = lambda: None,
        name: str = "The engine",
    ) -> None:
        self._name = name
        self._make = make
        self._max_restarts = max_restarts
        self._window = window
        self._clock = clock
        self._client = make()
        self._listeners: list[Callable[[StepStats], None]] = []
        self._lasting = lasting or LastingCalls()
        self._notes = lasting is None
        self._failed = failed
        self._restarted = restarted
        self._restarts = deque[float]()
        self._start_seconds = 1.0
        self._watch: asyncio.Task[None] | None = None
        self._down: str | None = None
        self._final: str | None = None
        self._info: Mapping[str, Any] = {}
        self._given_up = asyncio.Event()

    async def start(self) -> Mapping[str, Any]:
        """Start the engine, see ``EngineClient.start``; a first start that fails is not repeated."""
        began = self._clock()
        self._info = await self._client.start()
        self._start_seconds = self._clock() - began
        self._client.on_step(self._pass_step)
        self._watch = asyncio.create_task(self._replace_failed())
        return self._info

    def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        """Hand a request over and iterate over its outputs; see ``EngineClient.submit``."""
        self._check()
        return self._client.submit(request)

    async def control(self, name: str, **arguments: Any) -> Any:
        """Run a control call; see ``EngineClient.control``."""
        self._check()
        answer = await self._client.control(name, **arguments)
        if self._notes:
            self._lasting.note(Call(name, arguments))
        return answer

    def on_step(self, listener: Callable[[StepStats], None]) -> None:
        """Call ``listener`` with the statistics of every step; see ``EngineClient.on_step``."""
        self._listeners.append(listener)

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
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat of the current engine."""
        return self._client.heartbeat_age

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
            logger.error("%s failed and is started again: %s", self._name, reason)
            self._down = reason
            self._report_no_load()
            self._failed()
            reason = await self._restart() or await self._client.wait_failed()
        self._final = f"{reason}; it was started again {self._max_restarts} times in {self._window:g} seconds before"
        self._report_no_load()
        self._given_up.set()

    def _pass_step(self, stats: StepStats) -> None:
        """Pass the statistics of a step on, unless they arrive after the failure of their engine."""
        if self.failure is None:
            self._call_listeners(stats)

    def _report_no_load(self) -> None:
        """Tell the listeners that nothing runs any more. An error of one of them must not prevent the restart."""
        stats = StepStats(
            time=time.time(),
            seconds=0.0,
            prefill_sequences=0,
            prefill_tokens=0,
            cached_tokens=0,
            decode_sequences=0,
            running=0,
            waiting=0,
            used_slots=0,
            cached_slots=0,
            free_slots=0,
            capacity=0,
            retracted=0,
        )
        try:
            self._call_listeners(stats)
        except Exception:
            logger.exception("%s: a listener failed", self._name)

    def _call_listeners(self, stats: StepStats) -> None:
        for listener in self._listeners:
            listener(stats)

    def _may_restart(self) -> bool:
        now = self._clock()
        while self._restarts and now - self._restarts[0] > self._window:
            self._restarts.popleft()
        if len(self._restarts) >= self._max_restarts:
            return False
        self._restarts.append(now)
        return True

    async def _restart(self) -> str | None:
        """Replace the failed engine by a new one; return the reason if that does not serve."""
        try:
            await self._client.close()
            self._client = self._make()
            check_same(self._info, "the first engine", await self._client.start(), "the new one")
            async with self._lasting.lock:
                await self._lasting.repeat(self._client)
                self._client.on_step(self._pass_step)
                self._down = None
                self._restarted()
        except Exception as error:  # of any kind: a server without an engine must not wait forever
            return f"it did not start: {error}"
        logger.info("%s serves again", self._name)
        return None
