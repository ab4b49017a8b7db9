"""The directory in which engines and ingresses find each other, and exchange keys. No request passes through it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sglang_plug import EngineAddress

LEASE = 15.0
"""Seconds after its last report at which an entry is forgotten."""
PERIOD = 0.5
"""Seconds between two reports."""


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """An engine that serves, as it reports itself."""

    id: str
    version: str
    address: EngineAddress
    admitted: frozenset[bytes]
    """Public keys of the clients that can connect."""
    is_leaving: bool
    """True if it shall stop, so that clients should leave it."""


class Directory:
    """Remembers what was reported recently, and nothing else: after a restart it is complete in one period.

    Args:
        clock: a monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engines: dict[str, tuple[float, EngineEntry]] = {}
        self._keys: dict[str, dict[bytes, float]] = {}

    async def report_engine(self, entry: EngineEntry) -> frozenset[bytes]:
        """Note an engine; return the keys of the clients of its version."""
        now = self._clock()
        self._engines[entry.id] = now, entry
        keys = self._keys.get(entry.version, {})
        return frozenset(key for key, reported in keys.items() if now - reported < LEASE)

    async def report_client(self, version: str, keys: frozenset[bytes]) -> tuple[EngineEntry, ...]:
        """Note the keys of a client; return the engines of its version."""
        now = self._clock()
        known = self._keys.setdefault(version, {})
        known.update(dict.fromkeys(keys, now))
        for key in [key for key, reported in known.items() if now - reported >= LEASE]:
            del known[key]
        for id in [id for id, (reported, _) in self._engines.items() if now - reported >= LEASE]:
            del self._engines[id]
        return tuple(entry for _, entry in self._engines.values() if entry.version == version)

    async def forget_engine(self, id: str) -> None:
        """Forget an engine that has stopped."""
        self._engines.pop(id, None)
