"""Engines that are reached over TCP: admitted and rejected clients, and the loss of either side."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import zmq
import zmq.asyncio

from sglang_plug import (
    ConfigError,
    EngineAddress,
    EngineClient,
    EngineConfig,
    EngineError,
    EngineLaunch,
    EngineServer,
    Plugins,
    RemoteClient,
    Request,
    SamplingParams,
    decode_launch,
    encode_launch,
)
from sglang_plug.config import CacheOptions, ModelOptions
from sglang_plug.testing import check_engine_client

TIMEOUT = 60.0
LOCAL = "127.0.0.1"


def launch(plugins: Plugins | None = None) -> EngineLaunch:
    config = EngineConfig(model=ModelOptions(device="cpu"), cache=CacheOptions(max_total_tokens=8000))
    return EngineLaunch(config=config, plugins=plugins or Plugins.discover())


def request(id: str, tokens: int = 8) -> Request:
    return Request(id=id, tokens=(5, 6, 7), params=SamplingParams(temperature=0.0, max_new_tokens=tokens))


async def tokens_of(client: EngineClient, request: Request) -> list[int]:
    async with asyncio.timeout(TIMEOUT):
        return [token async for output in client.submit(request) for token in output.tokens]


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while True:
            result = holds()
            if result if isinstance(result, bool) else await result:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving() -> AsyncIterator[EngineServer]:
    server = EngineServer(launch(), LOCAL)
    try:
        await server.start()
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connected(server: EngineServer) -> AsyncIterator[RemoteClient]:
    client = RemoteClient(introduced_to(server), Plugins.discover())
    try:
        await client.start()
        yield client
    finally:
        await client.close()


def introduced_to(server: EngineServer) -> Callable[[bytes], Awaitable[EngineAddress]]:
    async def connect(key: bytes) -> EngineAddress:
        return server.admit(key)

    return connect


def test_it_keeps_the_contract_of_engine_clients() -> None:
    def deploy(launch: EngineLaunch) -> EngineClient:
        servers: list[EngineServer] = []

        async def connect(key: bytes) -> EngineAddress:
            servers.append(EngineServer(decode_launch(encode_launch(launch)), LOCAL))
            await servers[-1].start()
            return servers[-1].admit(key)

        async def close() -> None:
            for server in servers:
                await server.close()

        return RemoteClient(connect, launch.plugins, close)

    check_engine_client(deploy)


async def test_clients_share_an_engine_and_may_use_the_same_ids() -> None:
    async with serving() as server, connected(server) as first, connected(server) as second:
        steps: list[Any] = []
        second.on_step(steps.append)
        alone = await tokens_of(first, request("same", 30))
        assert steps  # of the other client's request
        both = await asyncio.gather(tokens_of(first, request("same", 30)), tokens_of(second, request("same", 30)))
        assert both == [alone, alone]
        replies = await asyncio.gather(*(client.control("info") for client in (first, second) for _ in range(3)))
        assert len(replies) == 6
        assert server.requests == 0


async def test_a_client_that_leaves_or_dies_takes_its_requests_along() -> None:
    async with serving() as server, connected(server) as other:
        async with connected(server) as leaving:
            outputs = leaving.submit(request("endless", 4000))
            await anext(outputs)
            assert (server.requests, server.clients) == (1, 2)
        with pytest.raises(EngineError, match="closed"):
            async for _ in outputs:
                pass
        await until(lambda: (server.requests, server.clients) == (0, 1))
        assert await idle(other)

        key, secret = zmq.curve_keypair()
        address = server.admit(key)
        process = subprocess.Popen([sys.executable, "-c", client_that_dies(address, key, secret)])
        await until(lambda: server.requests == 1)
        process.send_signal(signal.SIGKILL)
        await until(lambda: (server.requests, server.clients) == (0, 1))
        assert await idle(other)
        assert process.wait() == -signal.SIGKILL
        assert len(await tokens_of(other, request("next"))) == 8


async def idle(client: EngineClient) -> bool:
    async def is_idle() -> bool:
        info = await client.control("info")
        return not (info["running"] or info["waiting"] or info["paused"])

    await until(is_idle)
    return True


def client_that_dies(address: EngineAddress, key: bytes, secret: bytes) -> str:
    return textwrap.dedent(f"""
        import asyncio, zmq
        zmq.curve_keypair = lambda: ({key!r}, {secret!r})
        from sglang_plug import EngineAddress, Plugins, RemoteClient, Request, SamplingParams

        async def connect(key):
            return EngineAddress({address.host!r}, {address.port}, {address.public_key!r})

        async def main():
            client = RemoteClient(connect, Plugins.discover())
            await client.start()
            params = SamplingParams(temperature=0.0, max_new_tokens=4000)
            async for _ in client.submit(Request(id="endless", tokens=(5, 6, 7), params=params)):
                await asyncio.sleep(1)  # it is paused now

        asyncio.run(main())
    """)


async def test_the_death_of_the_engine_ends_every_request_of_every_client() -> None:
    async with serving() as server, connected(server) as first, connected(server) as second:
        running = [asyncio.create_task(tokens_of(client, request("endless", 4000))) for client in (first, second)]
        call = asyncio.create_task(first.control("info"))
        await call
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        for outcome in await asyncio.gather(*running, return_exceptions=True):
            assert isinstance(outcome, EngineError) and "signal 9" in str(outcome)
        assert "signal 9" in await first.wait_failed()
        late = RemoteClient(introduced_to(server), Plugins.discover())
        with pytest.raises(EngineError, match="signal 9"):
            await late.start()


async def test_a_client_can_end_the_engine() -> None:
    async with serving() as server, connected(server) as first, connected(server) as second:
        first.kill()
        async with asyncio.timeout(TIMEOUT):
            assert "killed" in await first.wait_failed()
            assert "signal 9" in await second.wait_failed()


async def test_the_loss_of_the_server_is_the_failure_of_the_engine() -> None:
    async with serving() as server, connected(server) as client:
        running = asyncio.create_task(tokens_of(client, request("endless", 4000)))
        await until(lambda: server.requests == 1)
        await server.close()
        with pytest.raises(EngineError, match="connection to the engine was lost"):
            await running
        with pytest.raises(EngineError, match="lost"):
            await tokens_of(client, request("late"))


async def test_strangers_get_nothing() -> None:
    """A client is rejected if its key was not admitted, if it knows another server's key, or if it does not encrypt."""
    async with serving() as server, connected(server) as friend:

        async def not_introduced(key: bytes) -> EngineAddress:
            return server.address

        stranger = RemoteClient(not_introduced, Plugins.discover())
        with pytest.raises(EngineError, match="refused this client's key"):
            await stranger.start()

        async def wrong_server(key: bytes) -> EngineAddress:
            return replace(server.admit(key), public_key=zmq.curve_keypair()[0])

        deceived = RemoteClient(wrong_server, Plugins.discover())
        with pytest.raises(EngineError, match="another key|lost|refused"):
            await deceived.start()

        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as plain:
            plain.setsockopt(zmq.LINGER, 0)
            plain.connect(f"tcp://{LOCAL}:{server.address.port}")
            for _ in range(3):
                await plain.send(b"\x82\xa4type\xa5hello\xabfingerprint\x90")
            running = asyncio.create_task(tokens_of(friend, request("known", 200)))
            assert len(await running) == 200
            assert not await plain.poll(0)
        assert server.clients == 1


async def test_a_key_that_is_not_admitted_any_more_cannot_connect_again() -> None:
    async with serving() as server, connected(server) as friend:
        admitted: list[bytes] = []

        async def connect(key: bytes) -> EngineAddress:
            admitted.append(key)
            server.admit_only([])
            return server.address

        with pytest.raises(EngineError, match="refused this client's key"):
            await RemoteClient(connect, Plugins.discover()).start()
        assert admitted
        assert len(await tokens_of(friend, request("known"))) == 8


async def test_other_plugins_are_refused_by_name(tmp_path: Any) -> None:
    from sglang_plug import PluginOptions

    file = tmp_path / "extra.py"
    file.write_text("")
    others = Plugins.discover(PluginOptions(files=(str(file),)))
    async with serving() as server:
        client = RemoteClient(introduced_to(server), others)
        with pytest.raises(ConfigError, match="other plugins than its client: .*extra"):
            await client.start()
        assert server.clients == 0


def test_a_launch_for_another_machine_checks_its_plugins(tmp_path: Any) -> None:
    here = launch()
    sent = encode_launch(here)
    assert decode_launch(sent).config == here.config
    with pytest.raises(ConfigError, match="sees other plugins than the server: .*nobody"):
        decode_launch(sent.replace(b'"fingerprint":[', b'"fingerprint":[["nobody","1","2"],'))
    with pytest.raises(ConfigError, match="cannot be read"):
        decode_launch(b"{}")


async def test_what_cannot_be_served_is_the_configurations_fault() -> None:
    nothing = replace(launch().config, model=ModelOptions(path="/nothing", device="cpu"))
    server = EngineServer(EngineLaunch(config=nothing, plugins=Plugins.discover()), LOCAL)
    with pytest.raises(ConfigError, match="/nothing"):
        await server.start()
    await server.close()
