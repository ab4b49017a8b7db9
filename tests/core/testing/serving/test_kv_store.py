"""The conformance test of KV stores accepts the built-in ones and names the faults of others."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import KVBlock, KVStore, KVStoreError, KVStoreStats
from sglang_plug.testing import check_kv_store
from sglang_plug.testing.serving.kv_store import check_kills
from sglang_plug_backends.kv_stores.disk.example import open_store as open_disk
from sglang_plug_backends.kv_stores.disk.store import DiskStore
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.host import open_store as open_host
from sglang_plug_backends.kv_stores.settings import DiskSettings, HostSettings


def test_the_host_store_conforms() -> None:
    check_kv_store(open_host)


def test_the_disk_store_conforms() -> None:
    check_kv_store(open_disk, durable=True)


def test_a_store_is_found_by_its_name() -> None:
    check_kv_store("host")


class Host(HostStore):
    """The built-in host store, of which subclasses change one method."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(HostSettings(bytes=capacity))


class Truncating(Host):
    def store(self, blocks: Sequence[KVBlock]) -> None:
        super().store([KVBlock(block.key, block.data.cast("B")[:4096]) for block in blocks])


class Mixing(Host):
    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        return super().load(keys, deadline)[::-1]


class Optimistic(Host):
    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [True] * len(keys)


class Raising(Host):
    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        blocks = super().load(keys, deadline)
        return [KVStoreError("all or nothing")] * len(keys) if KVStoreError in map(type, blocks) else blocks


class Few(Host):
    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        return [block for block in super().load(keys, deadline) if not isinstance(block, KVStoreError)]


class Bytes(Host):
    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        return [bytes(block) if isinstance(block, memoryview) else block for block in super().load(keys, deadline)]  # type: ignore[misc]


class Keeping(Host):
    def clear(self) -> None:
        """Ignore the call, and keep all blocks."""


class KeepingDeleted(Host):
    def delete(self, keys: Sequence[bytes]) -> None:
        """Ignore the call, and keep the blocks."""


class Limitless(Host):
    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, 1 << 30)


class Generous(Host):
    """Uses four times its budget, and reports its size correctly."""

    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, 4 * capacity)


class CountsTwice(Host):
    """Counts the bytes of a block each time that it is stored."""

    def store(self, blocks: Sequence[KVBlock]) -> None:
        self._bytes += sum(block.data.nbytes for block in blocks if block.key in self._blocks)
        super().store(blocks)


class ClearsOnlyBlocks(Host):
    def clear(self) -> None:
        self._blocks.clear()


class Uncounted(Host):
    def stats(self) -> KVStoreStats:
        return KVStoreStats(blocks=0, bytes=0)


class KeepsAThread(Host):
    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, capacity)
        self.ended = threading.Event()
        threading.Thread(target=self.ended.wait, args=(60,), name="index", daemon=True).start()


class KeepsAFile(Host):
    def __init__(self, folder: Path, capacity: int) -> None:
        super().__init__(folder, capacity)
        self.index = (folder / "index").open("wb")
        KEPT.append(self.index)


KEPT: list[Any] = []


@pytest.mark.planted_bug("kv-store")
@pytest.mark.parametrize(
    ("store", "message"),
    [
        (Truncating, "4096 bytes that are not the 5000 that were stored"),
        (Mixing, "bytes that are not the"),
        (Optimistic, "lookup\\(\\) reports blocks that were never stored"),
        (Raising, "must not keep load\\(\\) from returning another one"),
        (Few, "load\\(\\) of 8 blocks returned 6 results"),
        (Bytes, "returned bytes, neither a memoryview nor a KVStoreError"),
        (Keeping, "lookup\\(\\) reports blocks after clear"),
        (KeepingDeleted, "delete\\(\\) must drop"),
        (Limitless, "a budget of 1048576 bytes: stats\\(\\) reports"),
        (Generous, "a budget of 1048576 bytes: stats\\(\\) reports"),
        (CountsTwice, "a second time must be left as they are, but stats\\(\\) changes"),
        (ClearsOnlyBlocks, "after clear\\(\\), stats\\(\\) reports"),
        (Uncounted, "stats\\(\\) does not count"),
        (KeepsAThread, "after close\\(\\) the threads index still run"),
        (KeepsAFile, "after close\\(\\) .*index.* is still open"),
    ],
)
def test_a_broken_store_is_named(store: type[KVStore], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_kv_store(store, settling=0.2)  # type: ignore[arg-type]


@pytest.mark.planted_bug("kv-store")
def test_a_store_that_is_not_durable_is_named() -> None:
    with pytest.raises(AssertionError, match="blocks are missing after close"):
        check_kv_store(open_host, durable=True)


ONE_FILE = """
from __future__ import annotations

from sglang_plug import KVStore, KVStoreError, KVStoreStats


class OneFile(KVStore):
    '''Keys and blocks in one file, which is read as it is.'''

    def __init__(self, path: Path) -> None:
        self._path = path
        self._blocks: dict[bytes, memoryview] = {}
        content = path.read_bytes() if path.exists() else b""
        while len(content) > 40:
            length = int.from_bytes(content[32:40], "little")
            self._blocks[content[:32]] = memoryview(content[40 : 40 + length])
            content = content[40 + length :]

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [key in self._blocks for key in keys]

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        return [self._blocks.get(key, KVStoreError("missing")) for key in keys]

    def store(self, blocks: Sequence[KVBlock]) -> None:
        with open(self._path, "ab", buffering=0) as file:
            for block in blocks:
                if block.key not in self._blocks:
                    self._blocks[block.key] = block.data
                    data = bytes(block.data)
                    file.write(block.key + len(data).to_bytes(8, "little"))
                    for start in range(0, len(data), 16):  # slowly, so that a kill meets it
                        file.write(data[start : start + 16])

    def delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._blocks.pop(key, None)

    def clear(self) -> None:
        self._blocks.clear()
        self._path.unlink(missing_ok=True)

    def stats(self) -> KVStoreStats:
        return KVStoreStats(blocks=len(self._blocks), bytes=sum(block.nbytes for block in self._blocks.values()))


def open_store(folder, capacity):
    return OneFile(folder / "blocks")
"""


@pytest.mark.planted_bug("kv-store")
def test_a_store_that_a_kill_damages_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one_file_store.py").write_text(ONE_FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    open_store = importlib.import_module("one_file_store").open_store
    with pytest.raises(AssertionError, match="killed while storing: load"):
        check_kills(open_store, tmp_path, 40)


def test_a_directory_has_one_budget_for_all_servers(tmp_path: Path) -> None:
    stores = [DiskStore(DiskSettings(path=str(tmp_path / "blocks"), bytes=1 << 20)) for _ in range(2)]
    for number in range(60):
        block = KVBlock(number.to_bytes(32, "big"), memoryview(bytes([number]) * 50_000))
        stores[number % 2].store([block])
    for store in stores:
        store.close()
    total = sum(path.stat().st_size for path in (tmp_path / "blocks").rglob("*.kv"))
    assert 300_000 < total < (1 << 20) + 50_100 * 4
