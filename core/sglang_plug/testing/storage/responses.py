"""Checks of responses: records, limits, events, and responses that another server generates."""

from __future__ import annotations

import asyncio
from typing import Any

from sglang_plug.contracts.storage.records import ResponseRecord
from sglang_plug.contracts.storage.responses import ResponseEvent, ResponseStore

from .opened import Servers

LONG = 3600.0


async def check_responses(servers: Servers) -> None:
    """Responses are returned as they were stored, to their owners only, and the least recently used is removed."""
    store, other = _store(servers, max_responses=3), _store(servers, max_responses=3)
    record = _response("a", owner="x", messages=({"role": "user", "content": "ü"},), items=({"id": "1"},))
    await store.put(record)
    assert await other.get("a") == record, "a response is not as it was stored, or not seen by another server"
    assert await other.get("a", "y") is None, "get() returns a response of another owner"
    assert not await other.delete("a", "y"), "delete() deletes a response of another owner"
    assert await store.get("unknown") is None, "get() returns an unknown response"
    for id in ("b", "c"):
        await store.put(_response(id))
    assert await other.get("a", "x") is not None
    await store.put(_response("d"))
    present = [id for id in "abcd" if await other.get(id) is not None]
    assert present == ["a", "c", "d"], f"of 4 responses the 3 that were used last must be kept; there are {present}"
    await store.put(_response("a", answer={"status": "changed"}))
    changed = await other.get("a")
    assert changed is not None and changed.answer == {"status": "changed"}, "put() does not replace a response"
    assert await other.delete("a") and not await store.delete("a"), "delete() must say whether there was a response"
    assert await store.get("a") is None, "a deleted response is returned"
    small = _store(servers, max_response_bytes=2000)
    await small.put(_response("large", answer={"text": "x" * 5000}))
    assert await small.get("large") is None, "a response that is larger than max_response_bytes is stored"
    await small.put(_response("e", answer={"text": "x" * 1200}))
    await small.put(_response("f", answer={"text": "x" * 1200}))
    present = [id for id in "ef" if await small.get(id) is not None]
    assert present == ["f"], f"responses take more than max_response_bytes; there are {present}"


async def check_events(servers: Servers) -> None:
    """Events are read in their order, by readers that come early or late, until the response is not running."""
    store, other = _store(servers), _store(servers)
    await store.put(_response("a", streams=True, running=True), LONG)
    early = [asyncio.create_task(_events(reader, "a")) for reader in (store, other)]
    for start in range(0, 30, 3):
        await store.append_events("a", [_event(number) for number in range(start, start + 3)])
        await asyncio.sleep(0)
    late = asyncio.create_task(_events(other, "a", 9))
    first = other.read_events("a")
    assert await anext(first) == _event(0), "read_events() does not begin with the first event"
    await first.aclose()
    assert not any(reader.done() for reader in (*early, late)), "readers do not wait for more events"
    await store.append_events("a", [_event(30)])
    await store.put(_response("a", streams=True))
    expected = [_event(number) for number in range(31)]
    for reader in early:
        assert await reader == expected, "read_events() does not return every event once, in order"
    assert await late == expected[10:], "read_events() after an event does not return those after it"
    assert await _events(other, "a") == expected, "events cannot be read after the response has ended"
    assert await _events(other, "unknown") == [], "read_events() returns events of an unknown response"
    await store.delete("a")
    assert await _events(other, "a") == [], "events of a deleted response are read"


async def check_running_responses(servers: Servers) -> None:
    """Another server cancels and deletes a response that is running, and notices that its server is gone."""
    store, other = _store(servers), _store(servers)
    for id in "abc":
        await store.put(_response(id, owner="x", running=True), LONG)
    assert await store.renew("abc", LONG) == set(), "a response has to stop although nobody wants that"
    assert not await other.cancel("a", "y"), "cancel() cancels a response of another owner"
    assert not await other.cancel("unknown"), "cancel() knows an unknown response"
    assert await other.cancel("a", "x"), "cancel() does not know a response that is running"
    assert await other.delete("b", "x"), "delete() does not know a response that is running"
    assert await store.renew("abc", LONG) == {"a", "b"}, "renew() does not return what was cancelled or deleted"
    for id in "ab":
        await store.put(_response(id, owner="x"))
    assert await other.get("a") is not None, "a response that was cancelled is lost"
    assert await other.get("b") is None, "a response that was deleted while it was running is stored again"
    assert not await other.cancel("a"), "cancel() cancels a response that has ended"
    assert not await other.is_abandoned("c"), "a response that is renewed counts as abandoned"
    reader = asyncio.create_task(_events(other, "c"))
    await store.renew("c", 0)
    assert await other.is_abandoned("c"), "a response whose time is over does not count as abandoned"
    await reader  # ends, too
    assert not await other.is_abandoned("a"), "a response that has ended counts as abandoned"


def _store(servers: Servers, **limits: Any) -> ResponseStore:
    store = servers.open(**limits).responses
    assert isinstance(store, ResponseStore), f"responses is {type(store).__name__}, not a ResponseStore"
    return store


def _response(id: str, **changes: Any) -> ResponseRecord:
    return ResponseRecord(**{"id": id, "answer": {"status": "completed"}, **changes})


def _event(number: int) -> ResponseEvent:
    return {"type": "response.output_text.delta", "sequence_number": number, "delta": "ä"}


async def _events(store: ResponseStore, id: str, after: int = -1) -> list[ResponseEvent]:
    return [event async for event in store.read_events(id, after)]
