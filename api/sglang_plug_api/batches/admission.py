"""Admission of batch lines: they start only when interactive requests do not have to wait for them.

The engine's queue is first come, first served by default, so a low priority alone would not let an interactive
request overtake lines that are queued already. Therefore lines are held back here: one starts only if the engine's
queue is empty, and if as many of the sequences that may run together stay free as batch lines occupy. So lines do not
queue in the engine, an interactive request starts at once, and a busier server runs fewer batch lines. The low priority
(``lines.BATCH_PRIORITY``) does the rest: lines are the first to be retracted when KV slots run out, and come last under
``--schedule-policy priority``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from sglang_plug import StepStats
from sglang_plug_api.text.text_engine import TextEngine

RECHECK = 0.25
"""Longest time between two checks of the conditions, in seconds."""


class BatchAdmission:
    """Admits lines of all batches, first come, first served.

    Args:
        engine: computes the lines.
        limit: maximum number of batch sequences in flight.
        capacity: sequences that the engine computes together.
        closed: returns True once no line may start.
    """

    def __init__(self, engine: TextEngine, *, limit: int, capacity: int, closed: Callable[[], bool]) -> None:
        self._engine = engine
        self._limit = limit
        self._capacity = capacity
        self._closed = closed
        self._held = 0
        self._waiting = dict[int, int]()
        """Replica -> sequences that waited at its last step."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        engine.client.on_step(self._on_step)

    @property
    def held(self) -> int:
        """Number of batch sequences in flight."""
        return self._held

    async def enter(self, width: int) -> None:
        """Wait until ``width`` sequences may start. Every call must be followed by one of ``leave``."""
        async with self._turn:
            while not self._may_start(width):
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK):
                        await self._changed.wait()
            self._held += width

    def leave(self, width: int) -> None:
        """Note that ``width`` sequences have ended."""
        self._held -= width
        self._changed.set()

    def _may_start(self, width: int) -> bool:
        if self._closed() or (self._held and self._held + width > self._limit):
            return False
        in_flight = self._engine.in_flight
        if not in_flight:
            self._waiting.clear()  # sequences that waited at the last step have ended since
        # in_flight includes lines that have reached the engine; counting them twice leaves as many sequences free
        needed = min(width, max(1, self._capacity // 2))
        return not self._somebody_waits() and in_flight + self._held + needed <= self._capacity

    def _somebody_waits(self) -> bool:
        if not any(self._waiting.values()):
            return False
        return any(
            self._waiting.get(replica.replica, 0) for replica in self._engine.client.replicas if replica.failure is None
        )

    def _on_step(self, stats: StepStats) -> None:
        self._waiting[stats.replica] = stats.waiting
        self._changed.set()


class AdmittedLine:
    """The admission of one line, which may leave and enter again while it is tried several times.

    Args:
        admission: decides when the line may start.
        width: number of sequences of the line.
    """

    def __init__(self, admission: BatchAdmission, width: int) -> None:
        self._admission, self._width = admission, width
        self._is_in = False

    async def enter(self) -> None:
        """Wait until the line may start."""
        await self._admission.enter(self._width)
        self._is_in = True

    def leave(self) -> None:
        """Note that the sequences of the line have ended; nothing happens if the line has left already."""
        if self._is_in:
            self._is_in = False
            self._admission.leave(self._width)
