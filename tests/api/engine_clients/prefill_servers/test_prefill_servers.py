"""Tests of a prefill server and its decode servers over real sockets, with engines whose failures are scripted."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from sglang_plug import (
    ConfigError,
    EngineAddress,
    EngineError,
    Finish,
    KVTransfer,
    Output,
    Plugins,
    RemoteClient,
    Request,
    RequestError,
    SamplingParams,
)
from sglang_plug.clients.peer_connections import keys_of
from sglang_plug_api.engine_clients.prefill_servers.decode_group import DecodeGroup, check_fit
from sglang_plug_api.engine_clients.prefill_servers.prefill_group import PrefillGroup
from sglang_plug_api.engine_clients.replicas.checked_routing import CheckedRouting
from tests.api.engine_clients.replicas.scripted_replica import ScriptedReplica
from tests.api.engine_clients.replicas.test_group import ScriptedPolicy

TIMEOUT = 60.0
LOCAL = "127.0.0.1"
BLOCK_TOKENS = 4
SECRET, OTHER_SECRET = b"a secret of both", b"another secret!!"
PLUGINS = Plugins.discover()
IDENTITY = {"model": "Llama", "dtype": "float32", "weights": "a1"}


class Engine(ScriptedReplica):
    """An engine with a transfer store, which reports that it sends the prompts that it is asked to send."""

    def __init__(self, identity: dict[str, Any] = IDENTITY, *, transfers: bool = True) -> None:
        super().__init__(0)
        address = {"address": "tcp://engine"} if transfers else None
        stores = {"block_tokens": BLOCK_TOKENS, "transfers": address, "identity": identity}
        self.values["info"] = {**self.info, "kv_stores": stores}
        self.got: list[Request] = []
        self.refuses: RequestError | None = None

    async def submit(self, request: Request) -> AsyncGenerator[Output, None]:
        self.got.append(request)
        if self.refuses is not None:
            raise self.refuses
        if request.transfer is not None and request.transfer.address:
            await self._unless_dead(self.may_go_on.wait())
            yield Output(id=request.id, tokens=(9,), finish=Finish("length"), cached_tokens=5, sends_prompt=True)
            return
        async with contextlib.aclosing(super().submit(request)) as outputs:
            async for output in outputs:
                yield output


class EngineFactory:
    """A factory of engines that keeps the engines it made."""

    def __init__(self, *engines: Engine) -> None:
        self._next, self.all = list(engines), list[Engine]()

    def __call__(self) -> Engine:
        self.all.append(self._next.pop(0) if self._next else Engine())
        return self.all[-1]

    @property
    def got(self) -> list[Request]:
        return [request for engine in self.all for request in engine.got]


def routing() -> CheckedRouting:
    return CheckedRouting(ScriptedPolicy(), "the policy")


@contextlib.asynccontextmanager
async def prefill_server(factory: EngineFactory, *, secret: bytes = SECRET, port: int = 0) -> AsyncIterator[str]:
    """Yield the address of a prefill server with one engine."""
    group = PrefillGroup(
        [factory],
        routing(),
        PLUGINS.fingerprint,
        host=LOCAL,
        port=port,
        keys=keys_of(secret),
        max_restarts=3,
        window=600.0,
    )
    try:
        yield (await group.start())["prefill_address"]
    finally:
        await group.close()


def client_of(address: str, secret: bytes = SECRET) -> RemoteClient:
    host, _, port = address.rpartition(":")

    async def connect(key: bytes) -> EngineAddress:
        return EngineAddress(host, int(port), key)

    return RemoteClient(connect, PLUGINS, keys=keys_of(secret))


@contextlib.asynccontextmanager
async def decode_server(factory: EngineFactory, *addresses: str, secret: bytes = SECRET) -> AsyncIterator[DecodeGroup]:
    """Yield a started decode server with one engine."""
    servers: list[tuple[str, Callable[[], RemoteClient]]] = [
        (address, lambda address=address: client_of(address, secret))  # type: ignore[misc]
        for address in addresses
    ]
    group = DecodeGroup([factory], servers, routing(), routing(), max_restarts=3, window=600.0)
    await group.start()
    try:
        yield group
    finally:
        await group.close()


def request(id: str, tokens: int = 20, **fields: Any) -> Request:
    return Request(id=id, tokens=tuple(range(tokens)), **fields)


async def outputs_of(client: Any, request: Request) -> list[Output]:
    async with asyncio.timeout(TIMEOUT):
        return [output async for output in client.submit(request)]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not holds():
            await asyncio.sleep(0.01)


async def failures(group: DecodeGroup) -> list[str | None]:
    return [server["failure"] for server in (await group.control("info"))["prefill_servers"]]


async def connected(group: DecodeGroup) -> None:
    async with asyncio.timeout(TIMEOUT):
        while any(await failures(group)):
            await asyncio.sleep(0.01)


async def test_a_prefill_server_computes_prompts_and_the_decode_engine_generates() -> None:
    prefill, decode = EngineFactory(), EngineFactory()
    async with prefill_server(prefill) as address, decode_server(decode, address) as group:
        outputs = await outputs_of(group, request("a"))
        assert [token for output in outputs for token in output.tokens] == [1, 2, 3]
        assert {output.cached_tokens for output in outputs} == {5}
        (prompt,), (generated,) = prefill.got, decode.got
        assert prompt.params.max_new_tokens == 1
        assert prompt.transfer is not None and prompt.transfer.address == "tcp://engine"
        assert generated.transfer == KVTransfer(id=prompt.transfer.id)
        assert await failures(group) == [None]
        await outputs_of(group, request("b", BLOCK_TOKENS))
        assert len(prefill.got) == 1, "a prompt without a whole block is computed by the decode engine"


async def test_decode_servers_may_use_the_same_ids() -> None:
    prefill, first, second = EngineFactory(), EngineFactory(), EngineFactory()
    async with (
        prefill_server(prefill) as address,
        decode_server(first, address) as decoder,
        decode_server(second, address) as other,
    ):
        prefill.all[0].may_go_on.clear()
        tasks = [asyncio.create_task(outputs_of(group, request("same"))) for group in (decoder, other)]
        await until(lambda: len(prefill.got) == 2)
        prefill.all[0].may_go_on.set()
        for outputs in await asyncio.gather(*tasks):
            assert [token for output in outputs for token in output.tokens] == [1, 2, 3]


async def test_other_requests_and_control_calls_are_refused() -> None:
    prefill = EngineFactory()
    async with prefill_server(prefill) as address:
        client = client_of(address)
        await client.start()
        with pytest.raises(RequestError, match="only computes prompts that it sends"):
            await outputs_of(client, request("a", params=SamplingParams(max_new_tokens=1)))
        transfer = KVTransfer(id="t", address="tcp://engine")
        with pytest.raises(RequestError, match="--role prefill"):
            await outputs_of(client, request("b", params=SamplingParams(max_new_tokens=5), transfer=transfer))
        with pytest.raises(RequestError, match="cannot call 'flush_cache'"):
            await client.control("flush_cache")
        client.kill()
        await client.close()
        assert prefill.got == []
        assert not prefill.all[0].killed


async def test_a_prompt_of_a_request_that_is_aborted_is_aborted() -> None:
    prefill, decode = EngineFactory(), EngineFactory()
    async with prefill_server(prefill) as address, decode_server(decode, address) as group:
        closed = asyncio.Event()
        engine = prefill.all[0]

        async def endless(request: Request) -> AsyncGenerator[Output, None]:
            engine.got.append(request)
            try:
                await asyncio.Event().wait()
                yield Output(id=request.id)
            finally:
                closed.set()

        engine.submit = endless  # type: ignore[method-assign]
        task = asyncio.create_task(outputs_of(group, request("a")))
        await until(lambda: prefill.got)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(TIMEOUT):
            await closed.wait()
        assert decode.got == []


async def test_prompts_are_computed_here_while_the_prefill_server_is_away() -> None:
    prefill, decode = EngineFactory(), EngineFactory()
    async with prefill_server(prefill) as address, decode_server(EngineFactory(), address) as group:
        port = int(address.rpartition(":")[2])
        await connected(group)
    async with decode_server(decode, address) as group:
        assert [bool(failure) for failure in await failures(group)] == [True]
        assert len(await outputs_of(group, request("alone"))) == 3
        assert decode.got[0].transfer is None
        async with prefill_server(prefill, port=port):
            await connected(group)
            await outputs_of(group, request("together"))
            assert [request.tokens for request in prefill.got] == [decode.got[-1].tokens]
            prefill.all[-1].may_go_on.clear()
            task = asyncio.create_task(outputs_of(group, request("lost")))
            await until(lambda: len(prefill.got) == 2)
        assert len(await task) == 3, "the prefill server has ended, and its prompt is computed here"
        assert decode.got[-1].transfer is None
        async with prefill_server(prefill, port=port):
            await connected(group)
            await outputs_of(group, request("again"))
            assert decode.got[-1].transfer is not None


async def test_another_prefill_server_takes_over() -> None:
    first, second, decode = EngineFactory(), EngineFactory(), EngineFactory()
    async with (
        prefill_server(second) as other,
        contextlib.AsyncExitStack() as stack,
    ):
        address = await stack.enter_async_context(prefill_server(first))
        async with decode_server(decode, address, other) as group:
            first.all[0].may_go_on.clear()
            task = asyncio.create_task(outputs_of(group, request("a")))
            await until(lambda: first.got)
            await stack.aclose()
            assert len(await task) == 3
            assert len(second.got) == 1 and decode.got[0].transfer is not None


async def test_a_prefill_server_whose_engine_is_started_again_costs_only_time() -> None:
    prefill, decode = EngineFactory(), EngineFactory()
    async with prefill_server(prefill) as address, decode_server(decode, address) as group:
        engine = prefill.all[0]
        engine.may_go_on.clear()
        task = asyncio.create_task(outputs_of(group, request("a")))
        await until(lambda: prefill.got)
        engine.die()
        assert len(await task) == 3
        await connected(group)
        await outputs_of(group, request("b"))
        assert decode.got[-1].transfer is not None


async def test_a_prompt_that_the_prefill_server_refuses_is_computed_here() -> None:
    prefill, decode = EngineFactory(), EngineFactory()
    async with prefill_server(prefill) as address, decode_server(decode, address) as group:
        prefill.all[0].refuses = RequestError("the queue is full", 503)
        assert len(await outputs_of(group, request("a"))) == 3
        assert await failures(group) == [None]


async def test_another_secret_is_refused() -> None:
    async with prefill_server(EngineFactory()) as address:
        with pytest.raises(ConfigError, match=r"127.0.0.1:\d+ cannot be used: .*the secret has to be the same"):
            async with decode_server(EngineFactory(), address, secret=OTHER_SECRET):
                pass
        stranger = client_of(address, OTHER_SECRET)
        with pytest.raises(EngineError):
            await stranger.start()


async def test_a_prefill_server_of_another_model_is_refused() -> None:
    other = {**IDENTITY, "model": "Qwen2", "weights": "b2"}
    async with prefill_server(EngineFactory(Engine(other))) as address:
        expected = "does not fit: .*model is 'Qwen2' there and 'Llama' here; weights is 'b2' there and 'a1' here"
        with pytest.raises(ConfigError, match=expected):
            async with decode_server(EngineFactory(), address):
                pass


async def test_a_prefill_server_of_another_model_that_comes_later_is_not_used() -> None:
    decode = EngineFactory()
    async with prefill_server(EngineFactory()) as address:
        port = int(address.rpartition(":")[2])
    async with decode_server(decode, address) as group:
        async with prefill_server(EngineFactory(Engine({**IDENTITY, "dtype": "float16"})), port=port):
            async with asyncio.timeout(TIMEOUT):
                while "dtype is 'float16' there" not in str(await failures(group)):
                    await asyncio.sleep(0.01)
            assert len(await outputs_of(group, request("a"))) == 3
        async with prefill_server(EngineFactory(), port=port):
            await connected(group)


async def test_engines_without_a_store_that_transfers_are_refused() -> None:
    for factory in (EngineFactory(Engine(transfers=False)),):
        with pytest.raises(ConfigError, match="needs a KV store that can transfer"):
            async with prefill_server(factory):
                pass
    async with prefill_server(EngineFactory()) as address:
        with pytest.raises(ConfigError, match="needs a KV store that can transfer"):
            async with decode_server(EngineFactory(Engine(transfers=False)), address):
                pass


async def test_a_port_that_is_taken_is_told_before_an_engine_starts() -> None:
    async with prefill_server(EngineFactory()) as address:
        factory = EngineFactory()
        with pytest.raises(ConfigError, match="choose another --prefill-port"):
            async with prefill_server(factory, port=int(address.rpartition(":")[2])):
                pass


def test_weights_whose_digest_is_not_known_yet_are_not_compared() -> None:
    def info(**changes: Any) -> dict[str, Any]:
        return {"kv_stores": {"transfers": {"address": "tcp://engine"}, "identity": {**IDENTITY, **changes}}}

    check_fit(info(), info(weights=None))
    check_fit(info(weights=None), info())
    with pytest.raises(ConfigError, match="page_size is '16' there and None here"):
        check_fit(info(), info(page_size="16"))
