"""Tests of KV-cache events of real engines: an index built only from events equals the prefix cache."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, PluginOptions, Request, SamplingParams
from sglang_plug.config import CacheOptions, EngineConfig, ModelOptions, ParallelOptions, ScheduleOptions
from tests.e2e.servers import Launcher, Server
from tests.e2e.servers import until as everywhere
from tests.plugins import watched_cache

pytestmark = pytest.mark.whole_engine

FOLDER = Path(__file__).parents[2] / "plugins"
SIZE = 4
TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FOLDER / "sglang-plug-kv-events")
    yield


def config_of(tiny_model: Any, replica: int = 0, **settings: Any) -> EngineConfig:
    """Return the configuration of an engine with the plugin."""
    return EngineConfig(
        model=ModelOptions(path=str(tiny_model("llama-3.2-1b").path), device="cpu"),
        cache=CacheOptions(max_total_tokens=256),
        parallel=ParallelOptions(replica=replica),
        plugins=PluginOptions(
            block=("thinking-budget",), dirs=(str(FOLDER),), settings={"kv-events": settings} if settings else {}
        ),
    )


def indexed_prefixes(subscriber: Any) -> list[tuple[int, ...]]:
    return sorted(subscriber.prefix(block) for block in subscriber.blocks)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launcher]:
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.close()


def until(holds: Callable[[], Any], subscriber: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, f"never happened, with {len(subscriber.blocks)} blocks at {subscriber.next}"
        if not subscriber.receive(0.02):
            subscriber.replay()


class Traffic:
    """Random requests with shared prefixes, several salts and many lengths, some of which are aborted."""

    def __init__(self, seed: int) -> None:
        self.random, self.number = random.Random(seed), 0
        self.prompts = [[self.random.randrange(90) for _ in range(60)] for _ in range(4)]

    def request(self) -> Request:
        self.number += 1
        prompt = self.random.choice(self.prompts)[: self.random.randrange(1, 60)]
        prompt = [*prompt, *(self.random.randrange(90) for _ in range(self.random.randrange(1, 12)))]
        return Request(
            id=f"r{self.number}",
            tokens=tuple(prompt),
            params=SamplingParams(temperature=0.0, max_new_tokens=self.random.choice((1, 5, 60))),
            salt=self.random.choice(("", "", "tenant")),
            arrived=time.time(),
        )

    async def serve(self, client: Any, count: int) -> None:
        await asyncio.gather(*(self._one(client, self.request(), self.random.random() < 0.2) for _ in range(count)))

    async def _one(self, client: Any, request: Request, aborted: bool) -> None:
        outputs = client.submit(request)
        async for _ in outputs:
            if aborted:
                break
        await outputs.aclose()


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_index_equals_the_cache_after_random_traffic(
    page_size: int, tiny_model: Any, serve: Callable[..., Any], tmp_path: Path
) -> None:
    from sglang_plug_kv_events.subscriber import Subscriber

    addresses = (f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay")
    settings = {"endpoint": addresses[0], "replay_endpoint": addresses[1], "block_size": SIZE, "buffer_batches": 20}
    config = config_of(tiny_model, **settings)
    served = serve(
        replace(
            config,
            cache=CacheOptions(max_total_tokens=256, page_size=page_size, prefix_cache="watched"),
            schedule=ScheduleOptions(max_running_requests=6, chunked_prefill_size=32),
            plugins=replace(config.plugins, files=(watched_cache.__file__,)),
        )
    )
    cache = watched_cache.caches[-1]
    traffic, subscriber = Traffic(page_size), Subscriber(*addresses)

    def compare() -> None:
        async def idle() -> None:
            while (info := await served.client.control("info"))["running"] or info["waiting"]:
                await asyncio.sleep(0.01)

        served.runner.run(idle())
        served.control("check")
        expected = sorted(tokens for _, tokens in cache.prefixes(SIZE))
        until(lambda: indexed_prefixes(subscriber) == expected, subscriber)
        tenant = sorted(tokens for salt, tokens in cache.prefixes(SIZE) if salt)
        assert sorted(subscriber.prefix(number) for number, block in subscriber.blocks.items() if block.keys) == tenant
        assert served.control("info")["kv_events"]["blocks"] == len(expected)

    for _ in range(6):
        served.runner.run(traffic.serve(served.client, 12))
        compare()
    assert len(subscriber.blocks) > 10
    subscriber.disconnect()
    for _ in range(8):
        served.runner.run(traffic.serve(served.client, 8))
    subscriber.connect()
    compare()
    late = Subscriber(*addresses)
    assert late.blocks == subscriber.blocks
    late.close()
    assert served.control("flush_cache")["success"]
    compare()
    assert not subscriber.blocks
    served.runner.run(traffic.serve(served.client, 12))
    compare()
    subscriber.close()


def is_equal(server: Server, subscriber: Any, replica: int, size: int) -> bool:
    """Return True if the index has as many blocks as the prefix cache, whose pages are as large as blocks."""
    states = server.info()["replica_states"]
    slots = next(state["slots"] for state in states if state["dp_rank"] == replica)
    return bool(slots["cached"] == len(subscriber.blocks) * size) and subscriber.replica == replica


def test_replicas_publish_apart_and_one_that_is_killed_clears_its_blocks(launch: Launcher, tmp_path: Path) -> None:
    from sglang_plug_kv_events.subscriber import Subscriber

    options = [f"kv-events.endpoint=ipc://{tmp_path}/e", f"kv-events.replay_endpoint=ipc://{tmp_path}/r"]
    options += ["kv-events.block_size=16", "kv-events.format=map"]
    server = launch(
        *("--replicas", "2", "--routing-policy", "round-robin", "--max-total-tokens", "2048", "--page-size", "16"),
        *("--plugins-dir", str(FOLDER), *(part for option in options for part in ("--set", option))),
    )
    subscribers = [Subscriber(f"ipc://{tmp_path}/e{end}", f"ipc://{tmp_path}/r{end}") for end in ("", "_dp1")]
    generator = random.Random(9)

    def use(count: int) -> None:
        for _ in range(count):
            prompt = [generator.randrange(200, 400) for _ in range(generator.randrange(100, 700))]
            server.generate({"input_ids": prompt, "sampling_params": {"max_new_tokens": 20, "ignore_eos": True}})

    def compare() -> None:
        for replica, subscriber in enumerate(subscribers):
            until(lambda replica=replica, follower=subscriber: is_equal(server, follower, replica, 16), subscriber)

    use(24)  # more than fits, so that prefixes are evicted
    compare()
    assert all(len(subscriber.blocks) > 40 for subscriber in subscribers)
    assert server.post("/flush_cache").status_code == 200
    compare()
    assert not any(subscriber.blocks for subscriber in subscribers)
    use(8)
    compare()
    victims = set(server.engine_pids())
    os.kill(min(victims), signal.SIGKILL)
    everywhere(lambda: len(server.engine_pids()) == 2 and set(server.engine_pids()) != victims, "a new engine")
    everywhere(lambda: len(server.info()["replica_states"]) == 2, "both replicas serve")
    compare()
    assert sorted(len(subscriber.blocks) > 0 for subscriber in subscribers) == [False, True]
    use(8)
    compare()
    for subscriber in subscribers:
        subscriber.close()


def test_nothing_is_published_unless_it_is_asked_for(serve: Callable[..., Any], tiny_model: Any) -> None:
    served = serve(config_of(tiny_model))
    assert "kv_events" not in served.control("info")


def test_blocks_that_are_not_whole_pages_are_refused(serve: Callable[..., Any], tiny_model: Any) -> None:
    config = config_of(tiny_model, endpoint="tcp://127.0.0.1:1", block_size=24)
    with pytest.raises(ConfigError, match="block_size is 24, but must be a multiple of --page-size, which is 16"):
        serve(replace(config, cache=CacheOptions(max_total_tokens=256, page_size=16)))


def test_an_address_in_use_is_refused_at_the_start(serve: Callable[..., Any], tiny_model: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"kv-events cannot use the address tcp://127.0.0.1:{port}.*in use"):
            serve(config_of(tiny_model, endpoint=f"tcp://127.0.0.1:{port - 1}", replica=1))
