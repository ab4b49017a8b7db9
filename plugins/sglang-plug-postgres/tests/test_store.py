"""Problems that only a store in a database has: restarts, missing tables, a newer schema, and text that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sglang_plug import (
    ContentMissing,
    FileRecord,
    ResponseRecord,
    StorageBroken,
    StorageUnavailable,
    Store,
    UnknownId,
)

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")

OpenStore = Callable[..., Store]
FILE = FileRecord(id="file", purpose="batch", filename="a.jsonl", bytes=1, created_at=5)
LONG = 3600.0


async def execute(server: Any, statement: Any) -> list[Any]:
    """Run a statement as an operator would."""
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


async def test_it_goes_on_after_a_restart_of_the_server(server: Any, open_store: OpenStore) -> None:
    store = open_store(timeout=2)
    await store.add_file(FILE)
    assert store.is_open
    responses = store.responses
    assert responses is not None
    await responses.put(ResponseRecord(id="a", answer={}, streams=True, running=True), LONG)
    events: list[Any] = []

    async def read() -> None:
        async for event in responses.read_events("a"):
            events.append(event["sequence_number"])

    reader = asyncio.create_task(read())
    await responses.append_events("a", [{"sequence_number": 0}])
    while not events:
        await asyncio.sleep(0.01)
    server.stop()
    try:
        with pytest.raises(StorageUnavailable):
            await store.file("file")
        with pytest.raises(StorageUnavailable):
            await reader
    finally:
        server.start()
    assert await store.file("file") == FILE
    reader = asyncio.create_task(read())
    await responses.append_events("a", [{"sequence_number": 1}])
    await responses.put(ResponseRecord(id="a", answer={}, streams=True))
    await reader
    assert events == [0, 0, 1]


async def test_a_server_that_is_not_there_is_unavailable(tmp_path: Any) -> None:
    from sglang_plug_postgres.settings import Settings
    from sglang_plug_postgres.store import PostgresStore

    from sglang_plug import StoreContext

    url = f"postgresql://user:secret@/db?host={tmp_path}"
    store = PostgresStore(StoreContext(), Settings(url=url, timeout=2))
    with pytest.raises(StorageUnavailable):
        await store.check_room()
    assert not store.is_open
    assert "secret" not in store.location and "db" in store.location
    await store.close()
    store = PostgresStore(StoreContext(), Settings(url="no connection string"))
    with pytest.raises(StorageBroken, match="connection string") as broken:
        await store.check_room()
    assert "postgres.url" in broken.value.remedy
    assert store.location


async def test_a_schema_of_a_later_version_is_refused(server: Any, open_store: OpenStore) -> None:
    store = open_store(schema="later")
    await store.check_room()
    await store.close()
    await execute(server, "UPDATE later.version SET number = 99")
    with pytest.raises(StorageBroken, match="version 99") as broken:
        await store.check_room()
    assert "Upgrade" in broken.value.remedy


async def test_a_table_that_is_missing_is_reported(server: Any, open_store: OpenStore) -> None:
    store = open_store(schema="missing")
    await store.check_room()
    await execute(server, "DROP TABLE missing.files")
    with pytest.raises(StorageBroken, match="tables are missing"):
        await store.check_room()


async def test_servers_that_start_at_once_make_one_schema(open_store: OpenStore) -> None:
    stores = [open_store(schema="at once") for _ in range(6)]
    await asyncio.gather(*(store.check_room() for store in stores))
    await stores[0].add_file(FILE)
    assert await stores[5].file("file") == FILE


async def test_text_that_the_database_cannot_hold(open_store: OpenStore) -> None:
    store = open_store()
    for id in ("a\0b", "a\ud800b"):
        with pytest.raises(UnknownId):
            await store.file(id)
        with pytest.raises(UnknownId):
            await store.batches(limit=1, after=id)
        with pytest.raises(ContentMissing):
            _ = [part async for part in store.read_content(id)]
        assert store.responses is not None and await store.responses.get(id) is None
    name = FileRecord(id="odd", purpose="batch", filename="a\0b\ud800", bytes=1, created_at=5)
    await store.add_file(name)
    assert (await store.file("odd")).filename == "a\N{REPLACEMENT CHARACTER}b?"
    answer = {"z": "\0 \ud800 ü", "a": [1.5, None]}
    await store.responses.put(ResponseRecord(id="odd", answer=answer))
    stored = await store.responses.get("odd")
    assert stored is not None and stored.answer == answer
    assert list(stored.answer) == ["z", "a"]  # JSON objects keep their order


async def test_contents_that_killed_servers_left_behind_are_removed(server: Any, open_store: OpenStore) -> None:
    store = open_store(schema="orphans")
    for id in ("file", "old", "fresh"):
        content = await store.create_content(id)
        await content.write(b"x" * 600_000)
        await content.commit()
    await store.add_file(FILE)
    change = "UPDATE orphans.chunks SET written_at = now() - interval '2 hours'"
    await execute(server, f"{change} WHERE file IN ('file', 'old') OR number = 0")
    await store.close()
    await store.check_room()
    rows = await execute(server, "SELECT file, count(*) FROM orphans.chunks GROUP BY file ORDER BY file")
    assert rows == [("file", 3), ("fresh", 3)]


async def test_a_file_that_is_deleted_while_it_is_read_is_not_cut_short(open_store: OpenStore) -> None:
    store = open_store()
    content = await store.create_content("file")
    await content.write(b"x" * 600_000)
    await content.commit()
    await store.add_file(FILE)
    parts = store.read_content("file")
    await anext(parts)
    await store.remove_file("file")
    with pytest.raises(ContentMissing):
        await anext(parts)


async def test_readers_are_notified(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting reader gets events by notification, without polling."""
    from sglang_plug_postgres import notifications

    monkeypatch.setattr(notifications, "LONGEST_WAIT", LONG)
    first, second = open_store().responses, open_store().responses
    assert first is not None and second is not None
    await first.put(ResponseRecord(id="a", answer={}, streams=True, running=True), LONG)
    events = second.read_events("a")
    for number in range(3):
        parsing = asyncio.create_task(anext(events))
        await first.append_events("a", [{"sequence_number": number}])
        assert await parsing == {"sequence_number": number}
    ending = asyncio.create_task(anext(events, None))
    await first.put(ResponseRecord(id="a", answer={}, streams=True))
    assert await ending is None


async def test_responses_of_servers_that_died_long_ago_are_removed(server: Any, open_store: OpenStore) -> None:
    responses = open_store(schema="died").responses
    assert responses is not None
    for id in ("old", "fresh"):
        await responses.put(ResponseRecord(id=id, answer={}, streams=True, running=True), LONG)
        await responses.append_events(id, [{"sequence_number": 0}])
    await execute(server, "UPDATE died.responses SET until = now() - interval '2 hours' WHERE id = 'old'")
    assert await responses.is_abandoned("old") and not await responses.is_abandoned("fresh")
    await responses.put(ResponseRecord(id="other", answer={}))
    rows = await execute(server, "SELECT response FROM died.events")
    assert (await responses.get("old"), rows) == (None, [("fresh",)])
