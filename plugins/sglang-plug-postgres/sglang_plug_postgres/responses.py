"""The tables of responses and their events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

from sglang_plug import ResponseEvent, ResponseRecord, ResponseStore, StoreContext

from .database import Connection, Database
from .notifications import Notifications
from .schema import clean

LOCK_NAME = "responses"
CHANNEL = "sglang_plug_responses"
READ_TOGETHER = 256
"""Maximum number of events that are read at once."""
PUT = """
    INSERT INTO responses (id, owner, answer, messages, items, streams, running, size, used, until)
    VALUES (%(id)s, %(owner)s, %(answer)s, %(messages)s, %(items)s, %(streams)s, %(running)s, %(size)s, nextval('uses'),
        clock_timestamp() + make_interval(secs => %(seconds)s))
    ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, answer = excluded.answer, messages = excluded.messages,
        items = excluded.items, streams = excluded.streams, running = excluded.running, size = excluded.size,
        used = excluded.used, until = excluded.until
"""
GET = """
    UPDATE responses SET used = nextval('uses')
    WHERE id = %(id)s AND NOT deleted AND (%(owner)s::text IS NULL OR owner = %(owner)s)
    RETURNING id, owner, answer, messages, items, streams, running
"""
REMOVE = """
    WITH ranked AS (
        SELECT id, row_number() OVER newest AS row_index, SUM(size) OVER newest AS total
        FROM responses WHERE NOT running WINDOW newest AS (ORDER BY used DESC)),
    removed AS (
        DELETE FROM responses WHERE id IN (SELECT id FROM ranked WHERE row_index > %(limit)s OR total > %(limit_bytes)s)
        OR (running AND until < clock_timestamp() - interval '1 hour') RETURNING id)
    DELETE FROM events WHERE response IN (SELECT id FROM removed)
"""
"""Removes the responses that are beyond the limits, and those whose servers died long ago."""
DELETE_RUNNING = """
    UPDATE responses SET deleted = true, must_stop = true
    WHERE id = %(id)s AND running AND NOT deleted AND (%(owner)s::text IS NULL OR owner = %(owner)s) RETURNING id
"""
DELETE_ENDED = """
    DELETE FROM responses
    WHERE id = %(id)s AND NOT running AND (%(owner)s::text IS NULL OR owner = %(owner)s) RETURNING id
"""
CANCEL = """
    UPDATE responses SET must_stop = true
    WHERE id = %(id)s AND running AND NOT deleted AND (%(owner)s::text IS NULL OR owner = %(owner)s) RETURNING id
"""
RENEW = """
    UPDATE responses SET until = clock_timestamp() + make_interval(secs => %s)
    WHERE id = ANY(%s) AND running RETURNING id, must_stop
"""
APPEND = """
    INSERT INTO events (response, number, data)
    SELECT %(id)s, added.number, added.data
    FROM unnest(%(numbers)s::integer[], %(data)s::json[]) AS added (number, data)
    WHERE EXISTS (SELECT FROM responses WHERE id = %(id)s AND running AND NOT deleted)
    ON CONFLICT DO NOTHING
"""
READ = """
    SELECT (SELECT running AND NOT deleted AND until > clock_timestamp() FROM responses WHERE id = %(id)s) AS running,
        ARRAY(
            SELECT data FROM events WHERE response = %(id)s AND number > %(after)s ORDER BY number LIMIT %(limit)s
        ) AS events
"""
"""One statement, so that a response that is not running gets no more events than those that it returns."""


class PostgresResponses(ResponseStore):
    """The responses of all servers."""

    def __init__(self, database: Database, limits: StoreContext) -> None:
        self._database, self._limits = database, limits
        self._notifications = Notifications(database, CHANNEL)

    async def close(self) -> None:
        """Stop waiting for notifications."""
        await self._notifications.close()

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        """Store a response, and remove others until there is room."""
        texts = {
            "answer": json.dumps(response.answer),
            "messages": json.dumps(response.messages),
            "items": json.dumps(response.items),
        }
        values = {
            **texts,
            "id": response.id,
            "owner": response.owner,
            "streams": response.streams,
            "running": response.running,
            "seconds": seconds,
        }
        size = sum(map(len, texts.values()))

        async def put(connection: Connection) -> None:
            if await self._is_deleted(connection, response):
                return
            total = size + (await _size_of_events(connection, response.id) if response.streams else 0)
            if not response.running and total > self._limits.max_response_bytes:
                await _delete(connection, response.id)
                return
            await connection.execute(PUT, {**values, "size": total})
            if not response.running:
                limits = {"limit": self._limits.max_responses, "limit_bytes": self._limits.max_response_bytes}
                await connection.execute(REMOVE, limits)
            await self._notifications.send(connection, response.id)

        await self._database.exclusively(put, name=LOCK_NAME)

    async def get(self, id: str, owner: str | None = None) -> ResponseRecord | None:
        """Return a response and mark it as used."""
        row = await self._row(GET, {"id": clean(id), "owner": owner})
        if row is None:
            return None
        return ResponseRecord(**{**row, "messages": tuple(row["messages"]), "items": tuple(row["items"])})

    async def is_abandoned(self, id: str) -> bool:
        """Report whether a response was not renewed in time."""
        query = "SELECT 1 FROM responses WHERE id = %(id)s AND running AND NOT deleted AND until <= clock_timestamp()"
        return await self._row(query, {"id": clean(id)}) is not None

    async def delete(self, id: str, owner: str | None = None) -> bool:
        """Delete a response and its events."""
        values = {"id": clean(id), "owner": owner}

        async def delete(connection: Connection) -> bool:
            for query in (DELETE_RUNNING, DELETE_ENDED):
                if await (await connection.execute(query, values)).fetchone() is not None:
                    await connection.execute("DELETE FROM events WHERE response = %(id)s", values)
                    await self._notifications.send(connection, id)
                    return True
            return False

        return await self._database.exclusively(delete, name=LOCK_NAME)

    async def cancel(self, id: str, owner: str | None = None) -> bool:
        """Let a running response stop."""
        return await self._row(CANCEL, {"id": clean(id), "owner": owner}) is not None

    async def renew(self, ids: Iterable[str], seconds: float) -> set[str]:
        """Keep running responses; return those that have to stop."""
        values = (seconds, list(ids))

        async def renew(connection: Connection) -> set[str]:
            rows = await (await connection.execute(RENEW, values)).fetchall()
            return {row["id"] for row in rows if row["must_stop"]}

        return await self._database.run(renew)

    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        """Append events to a running response."""
        values = {
            "id": id,
            "numbers": [event["sequence_number"] for event in events],
            "data": [json.dumps(event) for event in events],
        }

        async def append(connection: Connection) -> None:
            await connection.execute(APPEND, values)
            await self._notifications.send(connection, id)

        await self._database.run(append)

    async def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        """Yield the events with numbers above ``after``, and wait for more while the response is running."""
        with self._notifications.subscription(clean(id)) as changed:
            while True:
                changed.clear()
                values = {"id": clean(id), "after": after, "limit": READ_TOGETHER}
                row = await self._row(READ, values)
                assert row is not None
                for event in row["events"]:
                    yield event
                    after = event["sequence_number"]
                if not row["events"]:
                    if not row["running"]:
                        return
                    await self._notifications.wait(changed)

    async def _row(self, query: Any, values: dict[str, Any]) -> dict[str, Any] | None:
        async def select(connection: Connection) -> dict[str, Any] | None:
            return await (await connection.execute(query, values)).fetchone()

        return await self._database.run(select)

    async def _is_deleted(self, connection: Connection, response: ResponseRecord) -> bool:
        """Report whether a response was deleted while it was running; then forget it once it has ended."""
        row = await (await connection.execute("SELECT deleted FROM responses WHERE id = %s", (response.id,))).fetchone()
        if row is None or not row["deleted"]:
            return False
        if not response.running:
            await _delete(connection, response.id)
        return True


async def _size_of_events(connection: Connection, id: str) -> int:
    query = "SELECT COALESCE(SUM(octet_length(data::text)), 0) AS total FROM events WHERE response = %s"
    row = await (await connection.execute(query, (id,))).fetchone()
    assert row is not None
    return int(row["total"])


async def _delete(connection: Connection, id: str) -> None:
    await connection.execute("DELETE FROM responses WHERE id = %s", (id,))
    await connection.execute("DELETE FROM events WHERE response = %s", (id,))
