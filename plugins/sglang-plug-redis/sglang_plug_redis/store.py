"""The KV store: blocks on a server that speaks the Redis protocol."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from sglang_plug import KVBlock, KVStore, KVStoreError, KVStoreStats

from . import Settings
from .connections import Command, Connections, Session
from .monitor import Monitor
from .names import Names
from .seal import Seal, read_password, read_secret

LOAD_AHEAD = 8
"""Blocks that are asked for before the first of them has arrived."""
STORE_BYTES = 4 << 20
"""Bytes of the blocks that are sent before an answer is waited for."""
LOOKUPS = 3
"""Maximum number of attempts to look for blocks while other servers begin new generations."""


class RedisStore(KVStore):
    """Keeps blocks on a server that several servers share. Its memory limit is the budget.

    The server is not trusted: each block has a code that only those with the secret can make.

    Args:
        settings: the address and the secret. Raises ``ConfigError`` for settings that cannot be used; the server need
            not be reachable.
    """

    index_in_memory = False
    verifies = True

    def __init__(self, settings: Settings) -> None:
        self._seal = Seal(read_secret(settings))
        self._names = Names(settings.prefix, self._seal.id)
        self._connections = Connections(settings, read_password(settings))
        lifetime = str(settings.expire_seconds) if settings.expire_seconds else None
        self._store_options = ("NX",) if lifetime is None else ("NX", "EX", lifetime)
        self._use, self._use_options = ("TOUCH", ()) if lifetime is None else ("EXPIRE", (lifetime,))
        self._generation = b""  # as of the last answer
        self._monitor = Monitor(self._connections, self._names, expires=settings.expire_seconds > 0)

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Report which blocks the server has, and mark them as used: their time begins again.

        Raises ``KVStoreError``.
        """
        if not keys:
            return []
        with self._connections.session() as session:
            for _ in range(LOOKUPS):
                generation = self._generation
                uses = [(self._use, self._names.block(generation, key), *self._use_options) for key in keys]
                current, *present = session.call(("GET", self._names.generation_name), *uses)
                if current == generation:
                    return [bool(count) for count in present]
                self._generation = self._names.generation(session)
        return [False] * len(keys)

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        """Return blocks that are there, authentic, and arrive in time."""
        results = list[memoryview | KVStoreError]()
        forged = list[bytes]()
        if time.monotonic() < deadline:
            try:
                self._receive(keys, deadline, results, forged)
            except KVStoreError:
                if not results and time.monotonic() < deadline:
                    raise
        with contextlib.suppress(KVStoreError):
            self.delete(forged)  # so that they are stored again
        late = KVStoreError("the deadline has passed, or the connection was lost")
        return [*results, *[late] * (len(keys) - len(results))]

    def _receive(
        self, keys: Sequence[bytes], deadline: float, results: list[memoryview | KVStoreError], forged: list[bytes]
    ) -> None:
        """Append the results that arrive before the deadline, and the keys of blocks that are not authentic."""
        with self._connections.session(deadline) as session:
            generation = self._generation = self._names.generation(session)
            commands: list[Command] = [("GET", self._names.block(generation, key)) for key in keys]
            session.send(commands[:LOAD_AHEAD])
            for number, key in enumerate(keys):
                if session.remaining <= 0:
                    return
                value = session.receive()
                session.send(commands[number + LOAD_AHEAD : number + LOAD_AHEAD + 1])
                data = None if value is None else self._seal.open(key, value)
                if data is not None:
                    results.append(data)
                elif value is None:
                    results.append(KVStoreError("the block was dropped"))
                else:
                    forged.append(key)
                    results.append(KVStoreError("the block is not authentic"))

    def store(self, blocks: Sequence[KVBlock]) -> None:
        """Send blocks that the server does not have, and has room for. Raises ``KVStoreError``."""
        capacity = self._monitor.stats.capacity
        blocks = [block for block in blocks if capacity is None or block.data.nbytes < capacity]
        with self._connections.session() as session:
            generation = self._generation = self._names.generation(session)
        for batch in _batches(blocks):
            with self._connections.session() as session:
                self._send(session, generation, batch)
        with self._connections.session() as session:
            self._monitor.update(session)

    def _send(self, session: Session, generation: bytes, blocks: Sequence[KVBlock]) -> None:
        """Store blocks under their names; one that is there already is kept."""
        commands: list[Command] = []
        for block in blocks:
            value = self._seal.close(block.key, block.data)
            commands.append(("SET", self._names.block(generation, block.key), value, *self._store_options))
        session.call(*commands)

    def delete(self, keys: Sequence[bytes]) -> None:
        """Remove these blocks. Raises ``KVStoreError``."""
        if keys:
            with self._connections.session() as session:
                generation = self._names.generation(session)
                session.call(("UNLINK", *[self._names.block(generation, key) for key in keys]))

    def clear(self) -> None:
        """Begin another generation; earlier blocks are removed in the background. Raises ``KVStoreError``."""
        with self._connections.session() as session:
            self._names.next_generation(session)
        self._monitor.sweep()

    def stats(self) -> KVStoreStats:
        """Return the contents of the database, as of a few seconds ago."""
        return self._monitor.stats

    def close(self) -> None:
        """End the thread, and close the connections."""
        self._monitor.close()
        self._connections.close()


def _batches(blocks: Sequence[KVBlock]) -> Iterator[list[KVBlock]]:
    """Divide blocks into batches of about ``STORE_BYTES``."""
    batch, size = list[KVBlock](), 0
    for block in blocks:
        if batch and size + block.data.nbytes > STORE_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += block.data.nbytes
    if batch:
        yield batch
