"""Connections to the database: a pool, transactions, and the errors of stores."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, errors, sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from sglang_plug import StorageBroken, StorageUnavailable

from .schema import prepare
from .settings import Settings

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Connection = AsyncConnection[dict[str, Any]]
"""A connection whose rows are dictionaries."""
Work = Callable[[Connection], Awaitable[Result]]

ATTEMPTS = 5
"""Maximum number of attempts of a transaction that meets another one."""
LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(current_schema() || %s, 0))"


class Database:
    """The schema in a database. Nothing is connected before the first call.

    Args:
        settings: where it is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._opening = asyncio.Lock()
        self._calls = 0
        self._finished = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True if the schema was found or made."""
        return self._pool is not None

    @property
    def location(self) -> str:
        """Host, database and schema."""
        try:
            parts = conninfo_to_dict(self._settings.url)
        except psycopg.ProgrammingError:
            parts = {}
        named = [str(parts[name]) for name in ("host", "port", "dbname") if parts.get(name)]
        return f"postgres {' '.join(named) or 'of the environment'}, schema {self._settings.schema}"

    async def run(self, work: Work[Result]) -> Result:
        """Run ``work`` in a transaction. Raises what it raises, ``StorageBroken`` and ``StorageUnavailable``."""
        with storage_errors(), self._call():
            pool = await self._opened()
            for attempt in range(ATTEMPTS):
                try:
                    async with pool.connection() as connection:
                        return await work(connection)
                except (errors.DeadlockDetected, errors.SerializationFailure):
                    if attempt == ATTEMPTS - 1:
                        raise
            raise AssertionError("not reached")

    async def exclusively(self, work: Work[Result], *, name: str = "") -> Result:
        """Run ``work`` like ``run``, while no other server runs one of this ``name``."""

        async def locked(connection: Connection) -> Result:
            await connection.execute(LOCK, (name,))
            return await work(connection)

        return await self.run(locked)

    @contextlib.asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[Connection]:
        """Return a connection of its own that receives the notifications of ``channel``."""
        await self._opened()
        connection = await _connect(self._settings)
        try:
            await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            yield connection
        finally:
            await connection.close()

    async def close(self) -> None:
        """Close all connections once running calls have ended, or taken as long as a connection may take."""
        if self._calls:
            self._finished.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finished.wait(), self._settings.timeout)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._finished.set()

    async def _opened(self) -> AsyncConnectionPool[Connection]:
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
            return self._pool

    async def _open(self) -> AsyncConnectionPool[Connection]:
        connection = await _connect(self._settings)  # its error says more than that of a pool
        async with connection:
            await prepare(connection, self._settings.schema)
        pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            self._settings.url,
            connection_class=AsyncConnection[dict[str, Any]],
            kwargs={"row_factory": dict_row},
            min_size=1,
            max_size=self._settings.connections,
            timeout=self._settings.timeout,
            configure=self._configure,
            check=AsyncConnectionPool.check_connection,  # after a restart of the server, old connections are replaced
            open=False,
        )
        await pool.open()
        return pool

    async def _configure(self, connection: Connection) -> None:
        await _use_schema(connection, self._settings.schema)
        await connection.commit()


async def _connect(settings: Settings) -> Connection:
    try:
        connection = await AsyncConnection.connect(
            settings.url, row_factory=dict_row, autocommit=True, connect_timeout=max(2, round(settings.timeout))
        )
    except psycopg.ProgrammingError as error:
        raise StorageBroken("the connection string is not valid", f"Correct --set postgres.url: {error}") from error
    await _use_schema(connection, settings.schema)
    return connection


async def _use_schema(connection: Connection, schema: str) -> None:
    await connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Turn errors of the database into ``StorageBroken`` and ``StorageUnavailable``."""
    try:
        yield
    except (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName) as error:
        remedy = "Restore the schema from a backup, or drop what is left of it; start again."
        raise StorageBroken(f"tables are missing ({type(error).__name__})", remedy) from error
    except errors.DiskFull as error:
        raise StorageUnavailable(str(error), is_disk_full=True) from error
    except (psycopg.Error, PoolTimeout) as error:
        raise StorageUnavailable(str(error).strip() or type(error).__name__) from error
