"""When a line of a batch may start, so that nobody who waits for an answer notices the batch.

The engine's queue is first come, first served by default, so a low priority alone would not let an interactive
request past lines that are queued already. Therefore lines are held back here: one starts only if the engine's
queue is empty, and if as many places among the sequences computed together stay free as batch lines hold. So
lines do not queue in the engine, an interactive request finds a place at once, and the busier the server, the
less of it goes to batches. The low priority (``lines.BATCH_PRIORITY``) does the rest: lines are the first to be
retracted when KV slots run out, and come last under ``--schedule-policy priority``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from sglang_plug import StepStats
from sglang_plug_api.text import TextEngine

RECHECK = 0.25
"""Seconds after which conditions are looked at again even if nothing was heard."""


class Admission:
    """Lets lines of all batches start, first come, first served.

    Args:
        engine: who computes them.
        most: most sequences of batches in flight.
        places: sequences that the engine computes together.
        closed: true once nothing new may start.
    """

    def __init__(self, engine: TextEngine, *, most: int, places: int, closed: Callable[[], bool]) -> None:
        self._engine, self._most, self._places, self._closed = engine, most, places, closed
        self._held = 0
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        engine.client.on_step(self._on_step)

    @property
    def held(self) -> int:
        """Sequences of batches in flight."""
        return self._held

    async def enter(self, width: int) -> None:
        """Wait until ``width`` sequences may start. Each must be followed by one ``leave``."""
        async with self._turn:
            while not self._may_start(width):
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK):
                        await self._news.wait()
            self._held += width

    def leave(self, width: int) -> None:
        """``width`` sequences have ended."""
        self._held -= width
        self._news.set()

    def _may_start(self, width: int) -> bool:
        if self._closed() or (self._held and self._held + width > self._most):
            return False
        in_flight = self._engine.in_flight
        if not in_flight:
            self._waiting = 0  # what waited at the last step has left since
        # in_flight counts lines that have reached the engine, so those are counted twice: the places to keep free
        needed = min(width, max(1, self._places // 2))
        return not self._waiting and in_flight + self._held + needed <= self._places

    def _on_step(self, stats: StepStats) -> None:
        self._waiting = stats.waiting
        self._news.set()
