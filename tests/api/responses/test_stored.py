"""Tests of responses that one server generates and another one reads, cancels and deletes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import pytest
from fastapi import FastAPI

from sglang_plug import (
    ResponseEvent,
    ResponseRecord,
    ResponseStore,
    StorageUnavailable,
    StoreContext,
    StoreWrapper,
)
from sglang_plug_api.answers.errors import ApiError
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.protocol.responses import ResponsesBody
from sglang_plug_api.responses import stored
from sglang_plug_api.responses.active_response import ActiveResponse
from sglang_plug_api.responses.background import EventWriter
from sglang_plug_api.responses.input_items import ItemQuery
from sglang_plug_api.responses.service import ResponsesService
from sglang_plug_api.responses.store import MemoryResponses
from sglang_plug_api.stores.sqlite.store import SQLiteStore

Serve = Callable[[], ResponsesService]


class Sharing(StoreWrapper):
    """A store whose responses several servers share."""

    def __init__(self, responses: ResponseStore) -> None:
        super().__init__(SQLiteStore(StoreContext()))
        self._responses = responses

    @property
    def responses(self) -> ResponseStore:
        return self._responses


class RecordingResponses(MemoryResponses):
    """A store that records which responses are no longer being generated."""

    def __init__(self) -> None:
        super().__init__(100, 1 << 20)
        self.ended = set[str]()

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        await super().put(response, seconds)
        if not response.running:
            self.ended.add(response.id)


@pytest.fixture
def memory() -> RecordingResponses:
    """The responses that all servers of a test share."""
    return RecordingResponses()


@pytest.fixture
async def services(
    text_engine: Callable[..., Any], memory: MemoryResponses
) -> AsyncIterator[tuple[ResponsesService, ResponsesService]]:
    """Two servers with the same store of responses."""
    engines = [text_engine(store=Sharing(memory)) for _ in range(2)]
    first, second = (ResponsesService(engine, renew_interval=0.01) for engine in engines)
    async with first.lifespan(FastAPI()), second.lifespan(FastAPI()):
        yield first, second


async def begin(server: ResponsesService) -> ActiveResponse:
    """Let a server generate a response in the background."""
    body = ResponsesBody(input="abc", background=True, stream=True, max_output_tokens=50)
    response = await server.prepare(body)
    await server.start(response)
    return response


async def start(server: ResponsesService) -> str:
    """Let a server generate a response in the background; return its id."""
    return (await begin(server)).id


async def texts(server: ResponsesService, id: str) -> list[tuple[str, Any]]:
    return [(event.name, event.data["sequence_number"]) async for event in await server.replay(id)]


async def test_both_servers_show_the_same(services: tuple[ResponsesService, ResponsesService]) -> None:
    first, second = services
    id = await start(first)
    own, others = await asyncio.gather(texts(first, id), texts(second, id))
    assert own == others
    assert [number for _, number in own] == list(range(len(own)))
    assert own[0][0] == "response.created"
    assert await second.retrieve(id) == await first.retrieve(id)
    query = ItemQuery()
    assert await second.input_items(id, query) == await first.input_items(id, query)
    following = ResponsesBody(input="abc", previous_response_id=id, max_output_tokens=5)
    assert len((await second.prepare(following)).conversation) > 2
    assert (await second.delete(id))["deleted"]
    with pytest.raises(ApiError, match="not found"):
        await first.retrieve(id)


async def test_a_response_is_cancelled_at_another_server(
    services: tuple[ResponsesService, ResponsesService], scripted: Any
) -> None:
    first, second = services
    scripted.pause.clear()
    running = await begin(first)
    id = running.id
    events = asyncio.create_task(texts(second, id))
    with pytest.raises(ApiError, match="is still in progress"):
        await second.prepare(ResponsesBody(input="abc", previous_response_id=id))
    cancelling = asyncio.create_task(second.cancel(id))
    while not running.cancelled:
        await asyncio.sleep(0.01)
    scripted.pause.set()
    assert (await cancelling)["status"] == "cancelled"
    assert (await second.cancel(id))["status"] == "cancelled"
    assert (await events)[-1][0] == "response.incomplete"


async def test_a_response_is_deleted_at_another_server(
    services: tuple[ResponsesService, ResponsesService], memory: RecordingResponses, scripted: Any
) -> None:
    first, second = services
    scripted.pause.clear()
    running = await begin(first)
    id = running.id
    assert (await second.delete(id))["deleted"]
    while not running.cancelled:
        await asyncio.sleep(0.01)
    scripted.pause.set()
    while id not in memory.ended:
        await asyncio.sleep(0.01)
    for server in services:
        with pytest.raises(ApiError, match="not found"):
            await server.retrieve(id)


async def test_a_response_whose_server_died_has_failed(
    services: tuple[ResponsesService, ResponsesService], memory: MemoryResponses
) -> None:
    _, second = services
    answer = {"id": "resp_1", "status": "in_progress", "error": None}
    await memory.put(ResponseRecord(id="resp_1", answer=answer, streams=True, running=True), 3600)
    await memory.append_events("resp_1", [{"type": "response.created", "sequence_number": 0}])
    assert (await second.retrieve("resp_1"))["status"] == "in_progress"
    parsing = asyncio.create_task(texts(second, "resp_1"))
    await asyncio.sleep(0)
    await memory.renew(["resp_1"], 0)
    assert await parsing == [("response.created", 0), ("response.failed", 1)]
    failed = await second.retrieve("resp_1")
    assert (failed["status"], failed["error"]) == ("failed", stored.ABANDONED)
    with pytest.raises(ApiError, match="failed"):
        await second.prepare(ResponsesBody(input="abc", previous_response_id="resp_1"))
    with pytest.raises(ApiError, match="ended as failed"):
        await second.cancel("resp_1")


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_server_that_was_too_busy_to_renew_its_responses_keeps_them(
    text_engine: Callable[..., Any], scripted: Any, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    monkeypatch.setattr(stored, "KEPT_SECONDS", 0.0)
    engine = text_engine(store=Sharing(MemoryResponses(100, 1 << 20)) if is_shared else None)
    server = ResponsesService(engine, renew_interval=3600)
    async with server.lifespan(FastAPI()):
        scripted.pause.clear()
        response = await begin(server)
        events = asyncio.create_task(texts(server, response.id))
        with pytest.raises(ApiError, match="is still in progress"):
            await server.prepare(ResponsesBody(input="abc", previous_response_id=response.id))
        scripted.pause.set()
        assert (await events)[-1][0] == "response.completed"
        assert (await server.retrieve(response.id))["status"] == "completed"


class Leased(MemoryResponses):
    """A store that ends the readers of a response that was not renewed in time, as those of several servers do."""

    def __init__(self) -> None:
        super().__init__(100, 1 << 20)
        self.expired = set[str]()

    async def is_abandoned(self, id: str) -> bool:
        return id in self.expired

    async def renew(self, ids: Iterable[str], seconds: float) -> set[str]:
        self.expired -= set(ids)
        return await super().renew(ids, seconds)

    async def read_events(self, id: str, after: int = -1) -> AsyncGenerator[ResponseEvent, None]:
        async for event in super().read_events(id, after):
            if id in self.expired:
                return
            yield event


async def test_events_go_on_after_a_server_was_too_busy_to_renew_a_response(
    text_engine: Callable[..., Any], scripted: Any
) -> None:
    store = Leased()
    engine = text_engine(store=Sharing(store))
    server = ResponsesService(engine, renew_interval=3600)
    async with server.lifespan(FastAPI()):
        scripted.pause.clear()
        response = await begin(server)
        events = asyncio.create_task(texts(server, response.id))
        while not scripted.requests:
            await asyncio.sleep(0)
        store.expired.add(response.id)
        scripted.pause.set()
        numbers = [number for _, number in await events]
        assert numbers == list(range(len(numbers))) and events.result()[-1][0] == "response.completed"


async def test_a_response_fails_at_the_end_of_its_server(
    services: tuple[ResponsesService, ResponsesService], text_engine: Callable[..., Any], memory: Any, scripted: Any
) -> None:
    engine = text_engine(store=Sharing(memory))
    ending, other = ResponsesService(engine), services[1]
    async with ending.lifespan(FastAPI()):
        scripted.pause.clear()
        running = await begin(ending)
        events = asyncio.create_task(texts(other, running.id))
        while not scripted.requests:
            await asyncio.sleep(0)
    assert (await events)[-1][0] == "response.failed"
    answer = await other.retrieve(running.id)
    assert (answer["status"], answer["error"]) == ("failed", stored.ABANDONED)
    assert scripted.aborted == [running.id]


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_server_finishes_responses_before_it_stops_if_others_can_read_them(
    text_engine: Callable[..., Any], scripted: Any, is_shared: bool
) -> None:
    engine = text_engine(store=Sharing(MemoryResponses(100, 1 << 20)) if is_shared else None)
    app, server = FastAPI(), ResponsesService(engine)
    app.state.gate = gate = GateState()
    async with server.lifespan(app):
        scripted.pause.clear()
        await begin(server)
        while not scripted.requests:
            await asyncio.sleep(0)
        assert (gate.in_flight, gate.tasks) == (int(is_shared), [])
        scripted.pause.set()
        while gate.in_flight:
            await asyncio.sleep(0)


class Failing(MemoryResponses):
    """A store that is unavailable for a number of calls."""

    def __init__(self, failures: int) -> None:
        super().__init__(100, 1 << 20)
        self.failures = failures

    def fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageUnavailable("away")

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        self.fail()
        await super().put(response, seconds)

    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        self.fail()
        await super().append_events(id, events)


async def test_a_store_that_is_away_costs_no_answer(text_engine: Callable[..., Any]) -> None:
    store = Failing(1)
    engine = text_engine(store=Sharing(store))
    server = ResponsesService(engine)
    answer = await server.answer(await server.prepare(ResponsesBody(input="abc", max_output_tokens=5)))
    assert answer["status"] in ("completed", "incomplete")
    with pytest.raises(ApiError, match="not found"):
        await server.retrieve(answer["id"])
    store.failures = 1
    with pytest.raises(ApiError, match="file storage does not work"):
        await start(server)


@pytest.mark.parametrize(("failures", "is_stored"), [(3, True), (10, False)])
async def test_events_are_stored_once_the_store_is_back(
    caplog: pytest.LogCaptureFixture, failures: int, is_stored: bool
) -> None:
    store = Failing(0)
    await store.put(ResponseRecord(id="a", answer={}, streams=True, running=True), 3600)
    store.failures = failures
    writer = EventWriter(store.append_events, "a", pause=0.0)
    events = [{"type": "x", "sequence_number": number} for number in range(3)]
    for event in events:
        writer.add(event)
    await writer.flush()
    await store.put(ResponseRecord(id="a", answer={}, streams=True))
    assert [event async for event in store.read_events("a")] == (events if is_stored else [])
    assert ("could not be stored" in caplog.text) == (not is_stored)


class Encoding(MemoryResponses):
    """A store that encodes responses, as stores outside of the process do."""

    def __init__(self) -> None:
        super().__init__(100, 1 << 20)
        self.encoded = list[str]()

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        self.encoded.append(json.dumps(response.answer))
        await super().put(response, seconds)

    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        self.encoded += map(json.dumps, events)
        await super().append_events(id, events)


async def test_a_store_gets_json(text_engine: Callable[..., Any]) -> None:
    store = Encoding()
    engine = text_engine(store=Sharing(store))
    server = ResponsesService(engine)
    async with server.lifespan(FastAPI()):
        body = ResponsesBody(input="abc", background=True, stream=True, max_output_tokens=5, top_logprobs=2)
        response = await server.prepare(body)
        await server.start(response)
        events = [event.data async for event in await server.replay(response.id)]
        while (await server.retrieve(response.id))["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
        answer = json.dumps(await server.retrieve(response.id))
    assert answer in store.encoded and '"top_logprobs"' in answer
    assert {json.dumps(event) for event in events} <= set(store.encoded)


class Slow(MemoryResponses):
    """A store with a delay, like one behind a network."""

    async def put(self, response: ResponseRecord, seconds: float = 0.0) -> None:
        await asyncio.sleep(0.01)
        await super().put(response, seconds)


async def test_responses_that_start_at_the_same_time_are_limited_together(text_engine: Callable[..., Any]) -> None:
    engine = text_engine(store=Sharing(Slow(100, 1 << 20)), max_stored_responses=2)
    server = ResponsesService(engine)
    async with server.lifespan(FastAPI()):
        started = await asyncio.gather(*(start(server) for _ in range(5)), return_exceptions=True)
    refused = [result for result in started if isinstance(result, ApiError)]
    assert [error.status for error in refused] == [503] * 3 and len(started) == 5


class Faulty(MemoryResponses):
    """A store that raises an error other than ``StorageError``."""

    async def append_events(self, id: str, events: Sequence[ResponseEvent]) -> None:
        raise ValueError("a fault")


async def test_a_response_ends_although_its_events_cannot_be_stored(text_engine: Callable[..., Any]) -> None:
    engine = text_engine(store=Sharing(Faulty(100, 1 << 20)))
    server = ResponsesService(engine)
    async with server.lifespan(FastAPI()):
        id = await start(server)
        while (await server.retrieve(id))["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
        assert (await server.retrieve(id))["status"] == "completed"
