"""The store on a real Redis server, which is shared, killed, slow, full or returns wrong data."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sglang_plug import KVBlock, KVStoreError
from sglang_plug.testing import check_kv_store

pytest.importorskip("redis", minversion="8", reason="the library redis is not installed")

from sglang_plug_redis.example import LocalServer, example
from sglang_plug_redis.store import RedisStore

Open = Callable[..., RedisStore]


def block(number: int, size: int = 1000) -> KVBlock:
    return KVBlock(blake2b(bytes([number]), digest_size=32).digest(), memoryview(Random(number).randbytes(size)))


def loaded(store: RedisStore, *blocks: KVBlock, seconds: float = 60.0) -> list[bool]:
    """Return for each of ``blocks`` whether it is loaded, after a check of the loaded contents."""
    results = store.load([block.key for block in blocks], time.monotonic() + seconds)
    for block, result in zip(blocks, results, strict=True):
        assert isinstance(result, KVStoreError) or result == block.data
    return [not isinstance(result, KVStoreError) for result in results]


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_conforms() -> None:
    check_kv_store("redis", **example())


def test_two_servers_share_blocks_and_generations(opened: Open) -> None:
    first, second = opened(), opened()
    first.store([block(1)])
    assert second.lookup([block(1).key, block(2).key]) == [True, False]
    assert loaded(second, block(1)) == [True]
    second.clear()
    assert first.lookup([block(1).key]) == [False] and loaded(first, block(1)) == [False]
    first.store([block(2)])
    assert loaded(second, block(1), block(2)) == [False, True]


def test_the_blocks_of_earlier_generations_are_removed(opened: Open, server: LocalServer) -> None:
    store, client = opened(), server.client
    store.store([block(number) for number in range(50)])
    client.set("somebody's", "value")
    store.clear()
    store.store([block(1)])
    until(lambda: client.dbsize() == 3)
    assert loaded(store, block(1)) == [True] and client.get("somebody's") == b"value"


def test_a_generation_that_the_server_lost_does_not_come_back(opened: Open, server: LocalServer) -> None:
    store, client = opened(), server.client
    store.store([block(1)])
    (name,) = client.keys("*:generation")
    client.delete(name)
    assert store.lookup([block(1).key]) == [False] and loaded(store, block(1)) == [False]
    store.store([block(1)])
    assert loaded(store, block(1)) == [True]


def test_servers_with_another_secret_share_nothing(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("another secret of a test")
    first, second = opened(), opened(secret_file=str(tmp_path / "secret"))
    first.store([block(1)])
    assert second.lookup([block(1).key]) == [False]
    second.store([block(1)])
    second.clear()
    assert loaded(first, block(1)) == [True] and loaded(second, block(1)) == [False]


@pytest.mark.parametrize("change", ["flip", "truncate", "empty", "swap"])
def test_a_value_that_was_tampered_with_is_dropped(opened: Open, server: LocalServer, change: str) -> None:
    store, client = opened(), server.client
    store.store([block(1), block(2)])
    names = {number: name for number in (1, 2) for name in client.keys(f"*{block(number).key.hex()}")}
    value: Any = client.get(names[1])
    changed = {
        "flip": value[:-1] + bytes([value[-1] ^ 1]),
        "truncate": value[:500],
        "empty": b"",
        "swap": client.get(names[2]),
    }
    client.set(names[1], changed[change])
    assert loaded(store, block(1), block(2)) == [False, True]
    assert store.lookup([block(1).key]) == [False]
    store.store([block(1)])
    assert loaded(store, block(1), block(2)) == [True, True]


def test_a_server_that_is_killed_costs_only_hits(opened: Open, server: LocalServer) -> None:
    store = opened(timeout=5.0)
    store.store([block(1)])
    assert loaded(store, block(1)) == [True]
    server.kill()
    for call in (
        lambda: store.lookup([block(1).key]),
        lambda: loaded(store, block(1)),
        lambda: store.store([block(2)]),
        store.clear,
    ):
        with pytest.raises(KVStoreError, match="Redis: "):
            call()
    assert store.stats().blocks == 1
    server.start()
    assert loaded(store, block(1)) == [False]
    store.store([block(2)])
    assert loaded(store, block(2)) == [True]


def test_a_server_need_not_run_at_the_start(opened: Open, server: LocalServer) -> None:
    server.kill()
    store = opened()
    with pytest.raises(KVStoreError):
        store.lookup([block(1).key])
    server.start()
    store.store([block(1)])
    assert loaded(store, block(1)) == [True]


def test_a_full_server_refuses_blocks_and_keeps_the_others(opened: Open, server: LocalServer) -> None:
    store, client = opened(), server.client
    store.store([block(1)])
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    with pytest.raises(KVStoreError, match="OOM|memory"):
        store.store([block(2)])
    assert loaded(store, block(1), block(2)) == [True, False]


@pytest.mark.parametrize(("expire_seconds", "remaining"), [(1000, range(990, 1001)), (0, [-1])])
def test_a_block_expires_after_its_last_use(
    opened: Open, server: LocalServer, expire_seconds: int, remaining: Sequence[int]
) -> None:
    store, client = opened(expire_seconds=expire_seconds), server.client
    store.store([block(1)])
    (name,) = client.keys(f"*{block(1).key.hex()}")
    assert client.ttl(name) in remaining
    if expire_seconds:
        client.expire(name, 500)  # as if half of the time had passed
    assert store.lookup([block(1).key, block(2).key]) == [True, False]
    assert client.ttl(name) in remaining
    assert loaded(store, block(1)) == [True]


class Proxy:
    """Forwards bytes to the server until a test stops it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.answers_left: int | None = None
        """Bytes of answers that are still forwarded; ``None``: all."""
        self.resume = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(self._path))
            threading.Thread(target=self._forward, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(4096):
                if answers and self.answers_left is not None:
                    self.answers_left -= len(data)
                    if self.answers_left < 0:
                        self.resume.wait()
                target.sendall(data)
        except OSError:
            pass
        finally:
            target.close()

    def close(self) -> None:
        self.resume.set()
        self._listener.close()


@pytest.fixture
def proxy(server: LocalServer) -> Iterator[Proxy]:
    running = Proxy(server.socket)
    yield running
    running.close()


def test_a_slow_server_is_left_at_the_deadline_with_what_has_arrived(opened: Open, proxy: Proxy) -> None:
    store = opened(url=f"redis://127.0.0.1:{proxy.port}/0", timeout=30.0)
    blocks = [block(number, 50_000) for number in range(20)]
    store.store(blocks)
    assert loaded(store, *blocks) == [True] * 20
    proxy.answers_left = 220_000
    results = loaded(store, *blocks, seconds=0.5)
    assert 1 <= sum(results) <= 4 and results == sorted(results, reverse=True)
    proxy.resume.set()
    assert loaded(store, *blocks) == [True] * 20, "answers to the abandoned questions are not mistaken for others"


def test_a_server_that_does_not_answer_is_given_up(opened: Open, proxy: Proxy) -> None:
    store = opened(url=f"redis://127.0.0.1:{proxy.port}/0", timeout=0.2)
    store.store([block(1)])
    contents = store.stats()
    proxy.answers_left = 0
    assert loaded(store, block(1), seconds=0.1) == [False]
    for call in (lambda: store.lookup([block(1).key]), lambda: store.store([block(2)]), store.clear):
        with pytest.raises(KVStoreError, match="Timeout"):
            call()
    assert store.stats() == contents, "statistics do not wait for the server"
    proxy.answers_left = None
    proxy.resume.set()
    assert store.lookup([block(2).key]) is not None


def test_a_server_that_asks_for_a_password_gets_it(opened: Open, server: LocalServer, tmp_path: Path) -> None:
    server.client.config_set("requirepass", "the password")
    with pytest.raises(KVStoreError, match=r"[Aa]uthentication"):
        opened().lookup([block(1).key])
    (tmp_path / "password").write_text("the password\n")
    store = opened(password_file=str(tmp_path / "password"))
    store.store([block(1)])
    assert loaded(store, block(1)) == [True]
