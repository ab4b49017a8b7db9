"""Statistics of the Redis server, read in a thread: ``stats`` must not wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from sglang_plug import KVStoreError, KVStoreStats

from .connections import Connections, Session
from .names import Names

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 10.0
BATCH = 500
"""Maximum number of names in one command that removes blocks."""
CLOSE_SECONDS = 2.0


class Monitor:
    """Keeps the statistics up to date, and removes the blocks of earlier generations.

    Args:
        connections: to the server.
        names: of the blocks.
        expires: blocks have a time to live.
    """

    def __init__(self, connections: Connections, names: Names, *, expires: bool) -> None:
        self._connections, self._names = connections, names
        self._policies = ("allkeys-", "volatile-") if expires else ("allkeys-",)
        self.stats = KVStoreStats(blocks=0, bytes=0)
        self._wake, self._closed = threading.Event(), False
        self._sweep = False
        self._is_checked = False
        self._thread = threading.Thread(target=self._run, name="kv-redis", daemon=True)
        self._thread.start()

    def update(self, session: Session) -> None:
        """Ask for the statistics. Raises ``RedisError``."""
        count, memory = session.call(("DBSIZE",), ("INFO", "memory"))
        lines = memory.decode(errors="replace").splitlines()
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        capacity = int(facts.get("maxmemory", 0))
        data = int(facts.get("used_memory_dataset") or facts.get("used_memory", 0))
        self.stats = KVStoreStats(blocks=max(0, count - 1), bytes=data, capacity=capacity or None)
        if not self._is_checked:
            self._is_checked = True
            self._check_budget(capacity, facts.get("maxmemory_policy", ""))

    def sweep(self) -> None:
        """Remove the blocks of earlier generations, in the thread."""
        self._sweep = True
        self._wake.set()

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._wake.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed:
            try:
                if self._sweep:
                    self._sweep = False
                    self._remove_earlier()
                with self._connections.session() as session:
                    self.update(session)
            except KVStoreError as error:
                logger.debug("%s", error)  # the calls that need it fail, and are reported
            except Exception:
                logger.exception("The statistics of Redis could not be read")
            self._wake.wait(REFRESH_SECONDS)
            self._wake.clear()

    def _remove_earlier(self) -> None:
        with self._connections.session() as session:
            current = self._names.generation(session)
        for batch in self._earlier(current):
            for start in range(0, len(batch), BATCH):
                with self._connections.session() as session:
                    session.call(("UNLINK", *batch[start : start + BATCH]))

    def _earlier(self, generation: bytes) -> Iterator[list[bytes]]:
        """Yield the names of blocks of other generations."""
        cursor = b"0"
        while not self._closed:
            with self._connections.session() as session:
                ((cursor, names),) = session.call(("SCAN", cursor, "MATCH", self._names.pattern, "COUNT", "1000"))
            yield [name for name in names if not self._names.is_of(name, generation)]
            if cursor == b"0":
                return

    def _check_budget(self, capacity: int, policy: str) -> None:
        """Say so if the server would fill its machine's memory, or refuse blocks when it is full."""
        if not capacity:
            logger.warning("The Redis server has no maxmemory: blocks are kept until its machine's memory is full")
        elif policy and not policy.startswith(self._policies):
            logger.warning(
                "The Redis server has maxmemory-policy %s: once it is full, nothing is stored. Set it to allkeys-lru",
                policy,
            )
