from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("redis", minversion="8", reason="the library redis is not installed")

from sglang_plug_redis import Settings
from sglang_plug_redis.example import LocalServer
from sglang_plug_redis.seal import SECRET
from sglang_plug_redis.store import RedisStore

Open = Callable[..., RedisStore]


@pytest.fixture
def server() -> Iterator[LocalServer]:
    """A Redis server."""
    running = LocalServer()  # skips the test if there is no program
    yield running
    running.stop()


@pytest.fixture
def opened(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return ``opened(**settings)``, which opens a store on the server that is closed after the test."""
    monkeypatch.setenv(SECRET, "the secret of a test")
    stores: list[RedisStore] = []

    def make(**settings: Any) -> RedisStore:
        stores.append(RedisStore(Settings(**{"url": server.url, **settings})))
        return stores[-1]

    yield make
    for store in stores:
        store.close()
