"""Tests of the batch runner: which of several servers runs a batch, and for which callers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request, Response

from sglang_plug import BatchRecord, EngineError, StoreContext
from sglang_plug_api.answers.errors import json_response
from sglang_plug_api.batches.runner import ABANDONED_AFTER, BatchRunner
from sglang_plug_api.http.middleware import GateState
from sglang_plug_api.options.config import ServerConfig
from sglang_plug_api.stores.sqlite.store import SQLiteStore
from sglang_plug_api.stores.storage import Storage
from sglang_plug_api.text.text_engine import TextEngine

Make = Callable[..., Any]
ROUTE = "/v1/completions"


class Server:
    """A server of a model with the shared storage folder."""

    def __init__(self, storage: SQLiteStore, model: str, now: Callable[[], float]) -> None:
        self.gate = GateState()
        self.prompts: list[str] = []
        self.called = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self.client = SimpleNamespace(on_step=lambda listener: None, failure=None)
        self.app = FastAPI()
        self.app.state.gate, self.app.state.endpoints = self.gate, {ROUTE: self.answer}
        engine = SimpleNamespace(
            info={"max_running_requests": 4},
            model_name=model,
            client=self.client,
            in_flight=0,
            config=ServerConfig(max_request_bytes=10_000),
        )
        self.storage = Storage(SQLiteStore(StoreContext(folder=str(storage.folder), max_bytes=100_000)))
        self.runner = BatchRunner(cast(TextEngine, engine), self.storage, storage_pause=0, now=now)

    async def answer(self, request: Request) -> Response:
        body = json.loads(await request.body())
        self.called.set()
        await self.hold.wait()
        if self.client.failure:
            raise EngineError(self.client.failure)
        self.prompts.append(body["prompt"])
        return json_response({"text": body["prompt"]})


class Site:
    """A storage folder with one batch, and the servers that share it."""

    def __init__(self, storage: SQLiteStore, stack: AsyncExitStack) -> None:
        self.storage, self._stack = storage, stack

    async def start(
        self, model: str = "demo", *, held: bool = False, now: Callable[[], float] = time.time, **attributes: Any
    ) -> Server:
        """Start a server; if it is ``held``, lines wait for their answers."""
        server = Server(self.storage, model, now)
        if held:
            server.hold.clear()
        for name, value in attributes.items():
            setattr(server.client, name, value)
        self._stack.push_async_callback(server.storage.close)
        await self._stack.enter_async_context(server.runner.lifespan(server.app))
        return server

    async def batch(self) -> BatchRecord:
        return await self.storage.call(lambda store: store.batch("batch_1"))

    async def move(self, to: Any) -> None:
        await self.storage.call(lambda store: store.move("batch_1", to, int(time.time())))

    async def until(self, *statuses: str) -> BatchRecord:
        async with asyncio.timeout(240):
            while (batch := await self.batch()).status not in statuses:
                await asyncio.sleep(0.005)
        return batch

    async def stays(self, server: Server, status: str) -> None:
        """Check that the servers do not change the batch in a few rounds of polling."""
        for _ in range(5):
            server.runner.wake()
            await asyncio.sleep(0.02)
        assert (await self.batch()).status == status


@pytest.fixture
async def site(
    storage: SQLiteStore, add_input: Callable[..., Awaitable[None]], request_line: Make, batch_record: Make
) -> AsyncIterator[Site]:
    """A site whose store has a batch of twenty lines for the model ``demo``."""
    await add_input([request_line(number) for number in range(20)])
    await storage.call(lambda store: store.add_batch(batch_record()))
    async with AsyncExitStack() as stack:
        yield Site(storage, stack)


async def test_what_lies_there_is_run(site: Site) -> None:
    server = await site.start()
    assert (await site.until("completed")).completed == 20
    assert sorted(server.prompts) == sorted(f"prompt {number}" for number in range(20))


async def test_another_model_touches_nothing(site: Site) -> None:
    other = await site.start("other")
    await site.stays(other, "validating")
    assert other.prompts == []
    await site.start("demo")
    await site.until("completed")
    assert other.prompts == []


async def test_two_servers_of_a_model_do_not_share_a_batch(site: Site) -> None:
    first = await site.start(held=True)
    await first.called.wait()
    second = await site.start()
    first.hold.set()
    assert (await site.until("completed")).completed == 20
    assert second.prompts == []
    assert len(first.prompts) == 20


async def test_the_next_server_takes_over(
    storage: SQLiteStore, add_input: Callable[..., Awaitable[None]], request_line: Make, batch_record: Make
) -> None:
    await add_input([request_line(number) for number in range(20)])
    await storage.call(lambda store: store.add_batch(batch_record()))
    async with AsyncExitStack() as later:
        async with AsyncExitStack() as earlier:
            first = await Site(storage, earlier).start(held=True)
            await first.called.wait()
            site = Site(storage, later)
            second = await site.start()
            await site.until("in_progress")
            await site.stays(second, "in_progress")
            assert second.prompts == []
        second.runner.wake()
        assert (await site.until("completed")).completed == 20
        assert len(second.prompts) == 20


async def test_a_cancel_by_another_process_is_noticed(site: Site) -> None:
    server = await site.start(held=True)
    await site.until("in_progress")
    await site.move("cancelling")
    assert (await site.until("cancelled")).completed == len(server.prompts) < 20


async def test_a_dead_engine_leaves_the_batch(site: Site) -> None:
    server = await site.start(failure="gone")
    await site.stays(server, "validating")


async def test_an_engine_that_dies_meanwhile_leaves_the_batch(site: Site) -> None:
    server = await site.start(held=True)
    await site.until("in_progress")
    server.client.failure = "gone"
    server.hold.set()
    await site.stays(server, "in_progress")
    assert (await site.batch()).failed == 0


async def test_a_server_without_the_route_leaves_the_batch(site: Site) -> None:
    server = await site.start(held=True)
    server.app.state.endpoints.clear()
    await site.stays(server, "validating")


async def test_a_server_that_stops_starts_nothing(site: Site) -> None:
    server = await site.start()
    server.gate.closing = True
    await site.until("in_progress")
    await site.stays(server, "in_progress")
    assert server.prompts == []
    server.gate.closing = False
    await site.until("completed")


async def test_a_batch_of_a_model_that_never_came_back_is_ended(site: Site) -> None:
    expires_at = (await site.batch()).expires_at
    server = await site.start("other", now=lambda: expires_at + ABANDONED_AFTER + 1.0)
    batch = await site.until("expired")
    assert batch.expired_at
    assert server.prompts == []


async def test_a_batch_goes_on_once_the_storage_works_again(site: Site) -> None:
    server = await site.start(held=True)
    await site.until("in_progress")
    path = site.storage.folder / "batches.sqlite3"
    path.rename(path.with_name("elsewhere"))
    server.hold.set()
    while not server.storage.status()["problem"]:
        await asyncio.sleep(0.005)
    path.with_name("elsewhere").rename(path)
    assert (await site.until("completed")).completed == 20
