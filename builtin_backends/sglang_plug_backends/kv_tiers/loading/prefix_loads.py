"""Loads prefixes in the background, if that is faster than computing them."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sglang_plug import KVBlock
from sglang_plug_backends.background_thread import background_thread
from sglang_plug_backends.kv_tiers.storage.rates import PrefillRate, Rate

from .prefix_source import NOTHING, LoadedPrefix, LocatedPrefix, MissingPrefix, PrefixSource

logger = logging.getLogger(__name__)

WORKERS = 2
GRACE = 1.0
"""Maximum time in seconds after its deadline for which a load is waited for: a store may be late by one block."""


@dataclass(slots=True, eq=False)
class PrefixLoad:
    """A prefix of one sequence that is being loaded, or was."""

    missing: MissingPrefix
    bytes: int
    """Bytes that are to be loaded."""
    gain: int
    """Number of blocks that need not be computed afterwards."""
    submitted: float
    """Time on the clock of the queue."""
    seconds: float
    """Seconds after ``submitted`` from which on loading is of no use any more."""
    compute_seconds: float | None
    """Estimated seconds to compute the blocks; ``None``: not known."""
    hold_deadline: float
    """``time.monotonic()`` from which on the request is not held while the queue waits for memory."""
    trial: bool = False
    """True if the blocks are loaded only to measure how long that takes; no request waits for them."""
    began: float | None = None
    """``time.monotonic()`` when a worker began with it."""
    deadline: float = 0.0
    """``time.monotonic()`` from which on blocks are of no use; known once a worker began with it."""
    done: bool = False
    """True once ``result`` is final."""
    released: bool = False
    """True once nobody needs the result."""
    result: LoadedPrefix = NOTHING


class StoppableClock:
    """A clock that can be stopped for a while.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._behind = clock, 0.0
        self._stopped: float | None = None

    def now(self) -> float:
        """Return the time in seconds, without the time for which the clock was stopped."""
        return (self._clock() if self._stopped is None else self._stopped) - self._behind

    def stop(self, stopped: bool) -> None:
        """Stop the clock, or let it go on."""
        if stopped and self._stopped is None:
            self._stopped = self._clock()
        elif not stopped and self._stopped is not None:
            self._behind += self._clock() - self._stopped
            self._stopped = None


class PrefixLoads:
    """The queue of loads, and the threads that load.

    A request is held for no longer than computing its prefix would take, and not at all if loading would probably take
    longer, with the loads before it. A load may wait longer for memory: loaded blocks then wait for the scheduler, as
    its own request does meanwhile.

    Args:
        source: loads prefixes.
        prefill: how long prompts take.
        max_bytes: maximum number of bytes of loaded prefixes that are not in the pool yet; further loads wait.
        promote: receives what came from another tier than the fastest.
        max_seconds: maximum time in seconds for one load.
        always: load whatever computing would take.
        clock: the time in seconds.
    """

    def __init__(
        self,
        source: PrefixSource,
        prefill: PrefillRate,
        *,
        max_bytes: int,
        max_seconds: float,
        always: bool,
        promote: Callable[[list[KVBlock]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._tiers, self._prefill, self._max_bytes = source, source.tiers, prefill, max_bytes
        self._max_seconds, self._always, self._promote = max_seconds, always, promote
        self._clock, self._queue_clock = clock, StoppableClock(clock)
        self._queue: deque[PrefixLoad] = deque()
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._active = set[PrefixLoad]()
        self._pace = Rate()  # of a worker, per byte of the loads that it takes
        self._closed = False
        self._threads = [background_thread(self._run, f"kv-loads-{number}") for number in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    @property
    def usable(self) -> bool:
        """False while all workers are stuck in a store that ignores deadlines."""
        with self._changed:
            now = self._clock()
            return sum(now > load.deadline + GRACE for load in self._active) < WORKERS

    @property
    def idle(self) -> bool:
        """True while no load waits or is under way."""
        with self._changed:
            return not self._queue and not self._active

    def submit(self, missing: MissingPrefix, *, always: bool = False) -> PrefixLoad | None:
        """Begin to load a prefix; ``always``: whatever computing it would take.

        Returns ``None`` if no tier has it, or if computing it is probably faster.
        """
        located = None
        if self._tiers.lookup_is_immediate and (located := self._source.locate(missing)) is None:
            return None
        gain = missing.max_gain if located is None else located.gain
        size = self._source.max_bytes(missing) if located is None else self._source.size(located)
        estimate = self._prefill.seconds(gain * self._source.layout.tokens)
        hold_seconds = self._max_seconds if estimate is None else min(estimate, self._max_seconds)
        compute, seconds = (None, self._max_seconds) if always or self._always else (estimate, hold_seconds)
        min_seconds = self._source.min_seconds(missing) if located is None else self._source.seconds(located)
        with self._changed:
            hold_deadline = self._clock() + hold_seconds
            load = PrefixLoad(missing, size, gain, self._queue_clock.now(), seconds, compute, hold_deadline)
            if compute is not None and min_seconds >= compute:
                self._measure_again(load, located)
                return None
            if compute is not None and min_seconds + self._seconds_before() >= compute:
                return None
            self._append(load)
        return load

    def is_late(self, load: PrefixLoad) -> bool:
        """Report whether a load should have been finished by now."""
        with self._changed:
            if load.began is None:
                return self._queue_clock.now() > load.submitted + load.seconds
            return self._clock() > load.deadline + min(GRACE, load.seconds)

    def lacks_memory(self, load: PrefixLoad) -> bool:
        """Report whether the queue waits for memory, and a load has waited for longer than its request is held.

        The memory is that of prefixes whose requests wait for the scheduler, for an unknown time.
        """
        with self._changed:
            return load.began is None and self._waits_for_room() and self._clock() > load.hold_deadline

    def release(self, load: PrefixLoad) -> None:
        """Forget a load, whose blocks are in the pool or are not needed."""
        with self._changed:
            if load.released:
                return
            load.released = True
            if load.done:
                self._held_bytes -= load.result.bytes
                load.result = NOTHING
            elif load in self._queue:
                self._queue.remove(load)
            self._queue_clock.stop(self._waits_for_room())
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """End the threads, and wait for at most so long for the loads that they are at.

        A thread that still runs when the interpreter ends can abort the process.
        """
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # -- the queue; the lock is held -------------------------------------------------------------------------------

    def _append(self, load: PrefixLoad) -> None:
        self._queue.append(load)
        self._queue_clock.stop(self._waits_for_room())
        self._changed.notify()

    def _measure_again(self, load: PrefixLoad, located: LocatedPrefix | None) -> None:
        """Load a prefix that no request waits for, if the rates that advise against loading are old."""
        if self._tiers.begin_trial(None if located is None else self._source.tiers_of(located)):
            self._append(
                PrefixLoad(
                    load.missing,
                    load.bytes,
                    load.gain,
                    0.0,
                    load.seconds,
                    load.compute_seconds,
                    load.hold_deadline,
                    trial=True,
                    released=True,
                )
            )

    def _waits_for_room(self) -> bool:
        """Report whether the first load in the queue has to wait; one may always begin, however large it is."""
        if not self._queue or self._held_bytes == 0:
            return False
        return self._held_bytes + self._queue[0].bytes > self._max_bytes

    def _seconds_before(self) -> float:
        """Return the seconds after which a worker probably has time for another load."""
        if not self._queue and len(self._active) < WORKERS:
            return 0.0
        now = self._clock()
        remaining = [
            max(0.0, self._pace.seconds(load.bytes) - (now - load.began))
            for load in self._active
            if load.began is not None
        ]
        return (sum(remaining) + self._pace.seconds(sum(load.bytes for load in self._queue))) / WORKERS

    # -- the threads -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (load := self._next()) is not None:
            result = NOTHING
            try:
                result = self._load(load)
            except Exception:
                logger.exception("A prefix could not be loaded")
            self._finish(load, result)

    def _next(self) -> PrefixLoad | None:
        """Wait for a load to begin with; ``None`` at the end."""
        with self._changed:
            while not self._closed and (not self._queue or self._waits_for_room()):
                self._changed.wait()
            if self._closed:
                return None
            load, now = self._queue.popleft(), self._queue_clock.now()
            if load.trial:
                load.submitted = now
            load.began = self._clock()
            load.deadline = load.began + load.submitted + load.seconds - now
            self._active.add(load)
            self._queue_clock.stop(self._waits_for_room())
            return load

    def _load(self, load: PrefixLoad) -> LoadedPrefix:
        if self._clock() >= load.deadline:
            return NOTHING
        located = self._source.locate(load.missing)
        if located is None or not self._is_worthwhile(load, located):
            return NOTHING
        result = self._source.load(located, load.deadline)
        if result.lower:
            self._promote(list(result.lower))
        return NOTHING if load.trial else result

    def _is_worthwhile(self, load: PrefixLoad, located: LocatedPrefix) -> bool:
        """Report whether loading what was located is probably faster than computing it, from now on."""
        if load.trial or load.compute_seconds is None:
            return True
        compute, seconds = load.compute_seconds * located.gain / load.gain, self._source.seconds(located)
        submitted = load.deadline - load.seconds
        with self._changed:
            load.deadline = min(load.deadline, submitted + compute)
            if seconds >= compute:
                self._measure_again(load, located)
                return False
        return self._clock() - submitted + seconds < compute

    def _finish(self, load: PrefixLoad, result: LoadedPrefix) -> None:
        with self._changed:
            now = self._clock()
            assert load.began is not None
            self._active.remove(load)
            self._pace.observe(load.bytes, now - load.began, now)
            if not load.released:
                self._held_bytes += result.bytes
                load.result = result
                load.done = True
            self._queue_clock.stop(self._waits_for_room())
