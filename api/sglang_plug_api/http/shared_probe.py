"""One probe of the model that all callers of ``/health_generate`` share."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sglang_plug_api.answers.errors import ApiError, from_exception

logger = logging.getLogger(__name__)

REUSE_SECONDS = 1.0
"""Seconds after its end in which a probe's result is reused."""


class SharedProbe:
    """Runs at most one probe at a time, and none within ``REUSE_SECONDS`` after the last one.

    The route needs no key, so the number of its callers must not decide how much the model computes.

    Args:
        probe: asks the model for a token. Raises an error if it gives none.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, probe: Callable[[], Awaitable[None]], clock: Callable[[], float] = time.monotonic) -> None:
        self._probe, self._clock = probe, clock
        self._running: asyncio.Task[ApiError | None] | None = None
        self._ended = -math.inf

    async def check(self) -> None:
        """Wait for the probe that is running, or take the last result. Raises ``ApiError`` if the probe failed."""
        task = self._running
        if task is None or (task.done() and self._clock() - self._ended >= REUSE_SECONDS):
            task = self._running = asyncio.create_task(self._run())
        failure = await asyncio.shield(task)  # a caller that disconnects does not cancel it for the others
        if failure is not None:
            raise ApiError(failure.message, failure.status, headers=failure.headers)

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """End the running probe when the server stops. For ``APIRouter(lifespan=…)``."""
        yield
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> ApiError | None:
        try:
            await self._probe()
            return None
        except Exception as error:
            refusal = from_exception(error)
            if refusal.status == 500:
                logger.exception("the probe of the model failed")
            return refusal
        finally:
            self._ended = self._clock()
