"""Tests of a server without a socket, as programs other than uvicorn run it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from sglang_plug import ConfigError, EngineConfig, Plugins
from sglang_plug.config import CacheOptions, ModelOptions
from sglang_plug_api.lifecycle.service import Service
from sglang_plug_api.options.config import ServerConfig, StorageConfig

pytestmark = pytest.mark.whole_engine
TIMEOUT = 60.0


@pytest.fixture
def config(tmp_path: object) -> ServerConfig:
    engine = EngineConfig(model=ModelOptions(device="cpu"), cache=CacheOptions(max_total_tokens=4096))
    storage = StorageConfig(file_storage_path=str(tmp_path))
    return ServerConfig(engine=engine, deployment="thread", drain_timeout=TIMEOUT, storage=storage)


@asynccontextmanager
async def client_of(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    """Start a service; return a client that calls its application directly. Stops the service at the end."""
    try:
        app = await service.start()
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=TIMEOUT) as client:
                yield client
    finally:
        await service.stop()


def body(tokens: int) -> dict[str, object]:
    return {"text": "Once", "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}


async def in_flight(service: Service, number: int) -> None:
    async with asyncio.timeout(TIMEOUT):
        while service.in_flight != number:
            await asyncio.sleep(0.01)


async def test_it_serves_from_start_to_stop(config: ServerConfig) -> None:
    service = Service(config, Plugins.discover())
    with pytest.raises(RuntimeError, match="not started"):
        _ = service.engine
    async with client_of(service) as client:
        assert (await client.get("/health")).status_code == 503  # no request was served yet
        await service.ready()
        assert (await client.get("/health")).status_code == 200
        answer = await client.post("/generate", json=body(4))
        assert answer.json()["meta_info"]["completion_tokens"] == 4
        failed = asyncio.create_task(service.failed())
        service.client.kill()
        async with asyncio.timeout(TIMEOUT):
            assert "killed" in await failed
    await service.stop()  # may be called again


async def test_draining_ends_what_is_in_flight_and_refuses_what_is_new(config: ServerConfig) -> None:
    service = Service(config, Plugins.discover())
    async with client_of(service) as client:
        first = asyncio.create_task(client.post("/generate", json=body(400)))
        await in_flight(service, 1)
        service.drain()
        assert (await client.post("/generate", json=body(1))).status_code == 503
        await service.drained()
        assert (await first).json()["meta_info"]["completion_tokens"] == 400


async def test_requests_in_flight_can_be_aborted_without_a_socket(config: ServerConfig) -> None:
    service = Service(config, Plugins.discover())
    async with client_of(service) as client:
        requests = [asyncio.create_task(client.post("/generate", json=body(3000))) for _ in range(2)]
        await in_flight(service, 2)
        service.drain()
        assert len(service.cancel()) == 2
        for request in requests:
            answer = await request
            assert (answer.status_code, answer.json()["message"].endswith("was aborted")) == (503, True)
        await service.drained()
        assert service.in_flight == 0


async def test_what_cannot_be_served_is_refused_before_an_engine_is_made(config: ServerConfig) -> None:
    unknown = ServerConfig(engine=config.engine, observers=("nobody",))
    with pytest.raises(ConfigError, match="nobody"):
        Service(unknown, Plugins.discover())


async def test_a_service_that_was_not_started_can_be_stopped(config: ServerConfig) -> None:
    await Service(config, Plugins.discover()).stop()
