"""The tables of claims and results of lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sglang_plug import OPEN_BATCH_STATUSES, WHOLE_BATCH, LineResult, StoreContext, UnknownId

from .database import Connection, Database
from .files import used_bytes
from .schema import TOKENS, clean, update

STATUS = "SELECT status FROM batches WHERE id = %s FOR UPDATE"
"""Reads a batch's status and locks its row, so that claims, results and the end of one batch wait for each other."""
HELD = "SELECT 1 FROM claims WHERE batch = %s AND line = %s AND worker <> %s AND until > clock_timestamp()"
CLAIM = """
    INSERT INTO claims (batch, line, worker, until)
    SELECT %(batch)s, requested.line, %(worker)s, clock_timestamp() + make_interval(secs => %(seconds)s)
    FROM unnest(%(lines)s::integer[]) AS requested (line)
    WHERE NOT EXISTS (SELECT FROM results WHERE batch = %(batch)s AND results.line = requested.line)
    ON CONFLICT (batch, line) DO UPDATE SET worker = excluded.worker, until = excluded.until
    WHERE claims.worker = excluded.worker OR claims.until <= clock_timestamp()
    RETURNING line
"""
ADD = """
    INSERT INTO results (batch, line, succeeded, payload)
    SELECT %(batch)s, added.line, added.succeeded, added.payload
    FROM unnest(%(lines)s::integer[], %(succeeded)s::boolean[], %(payloads)b::bytea[])
        AS added (line, succeeded, payload)
    WHERE NOT EXISTS (
        SELECT FROM claims WHERE batch = %(batch)s AND claims.line = added.line AND worker <> %(worker)s
        AND until > clock_timestamp())
    ON CONFLICT (batch, line) DO NOTHING
    RETURNING line
"""
END_CLAIMS = """
    DELETE FROM claims WHERE batch = %(batch)s AND line = ANY(%(lines)s)
    AND EXISTS (SELECT FROM results WHERE results.batch = claims.batch AND results.line = claims.line)
"""


class LineTable:
    """The lines of all batches that are claimed or have a result."""

    def __init__(self, database: Database, limits: StoreContext) -> None:
        self._database, self._limits = database, limits

    async def claim(self, id: str, lines: Sequence[int], worker: str, seconds: float) -> set[int]:
        """Claim those of ``lines`` that are free."""
        values = {"batch": id, "lines": sorted(set(lines)), "worker": worker, "seconds": seconds}

        async def claim(connection: Connection) -> set[int]:
            batch = await (await connection.execute(STATUS, (clean(id),))).fetchone()
            if batch is None or batch["status"] not in OPEN_BATCH_STATUSES:
                return set()
            if await is_held(connection, id, WHOLE_BATCH, worker):
                return set()
            rows = await (await connection.execute(CLAIM, values)).fetchall()
            return {row["line"] for row in rows}

        return await self._database.run(claim)

    async def renew(self, id: str, worker: str, seconds: float) -> None:
        """Let the claims of ``worker`` last for ``seconds``."""
        query = (
            "UPDATE claims SET until = clock_timestamp() + make_interval(secs => %s) WHERE batch = %s AND worker = %s"
        )

        async def renew(connection: Connection) -> None:
            await connection.execute(query, (seconds, clean(id), worker))

        await self._database.run(renew)

    async def release(self, id: str, worker: str) -> None:
        """End the claims of ``worker``."""

        async def release(connection: Connection) -> None:
            await connection.execute("DELETE FROM claims WHERE batch = %s AND worker = %s", (clean(id), worker))

        await self._database.run(release)

    async def add_results(self, id: str, results: Sequence[LineResult], worker: str) -> None:
        """Store results and count them, each line once. Raises ``UnknownId`` and ``StorageFull``."""
        by_line: dict[int, LineResult] = {}
        for result in results:
            by_line.setdefault(result.line, result)
        values = {
            "batch": id,
            "worker": worker,
            "lines": list(by_line),
            "succeeded": [result.succeeded for result in by_line.values()],
            "payloads": [result.payload for result in by_line.values()],
        }
        size = sum(len(result.payload) + 1 for result in results)

        async def add(connection: Connection) -> None:
            batch = await (await connection.execute(STATUS, (clean(id),))).fetchone()
            if batch is None:
                raise UnknownId(id)
            if batch["status"] not in ("in_progress", "cancelling"):
                return
            if await is_held(connection, id, WHOLE_BATCH, worker):
                return
            self._limits.check_bytes(await used_bytes(connection) + size)
            rows = await (await connection.execute(ADD, values)).fetchall()
            await connection.execute(END_CLAIMS, values)
            sums = _sums([by_line[row["line"]] for row in rows])
            await connection.execute(update("batches", sums, add=True), sums | {"id": id})

        await self._database.exclusively(add)

    async def done(self, id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""

        async def select(connection: Connection) -> set[int]:
            rows = await connection.execute("SELECT line FROM results WHERE batch = %s", (clean(id),))
            return {row["line"] for row in await rows.fetchall()}

        return await self._database.run(select)

    async def results(self, id: str, succeeded: bool, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return some results, ordered by line."""
        query = """
            SELECT line, payload FROM results WHERE batch = %s AND succeeded = %s AND line > %s ORDER BY line LIMIT %s
        """

        async def select(connection: Connection) -> list[tuple[int, bytes]]:
            async with connection.cursor(binary=True) as cursor:
                await cursor.execute(query, (clean(id), succeeded, after, limit))
                return [(row["line"], bytes(row["payload"])) for row in await cursor.fetchall()]

        return await self._database.run(select)


async def is_held(connection: Connection, id: str, line: int, worker: str) -> bool:
    """Report whether another worker than ``worker`` holds a line."""
    return await (await connection.execute(HELD, (id, line, worker))).fetchone() is not None


def _sums(results: Sequence[LineResult]) -> dict[str, int]:
    """Return what results add to the columns of their batch."""
    succeeded = sum(result.succeeded for result in results)
    usages = [asdict(result.usage) for result in results]
    return {
        "completed": succeeded,
        "failed": len(results) - succeeded,
        "result_bytes": sum(len(result.payload) + 1 for result in results),
        **{name: sum(usage[name] for usage in usages) for name in TOKENS},
    }
