"""The files of a disk store: writing, eviction, reopening and damage."""

from __future__ import annotations

import os
import random
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from sglang_plug import ConfigError, KVBlock, KVStoreError
from sglang_plug_backends.kv_stores.disk.record import HEADER_BYTES
from sglang_plug_backends.kv_stores.disk.store import DiskStore
from sglang_plug_backends.kv_stores.settings import DiskSettings, parse_bytes

Open = Callable[..., DiskStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "blocks"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Return ``opened(**settings)``, which opens a store that is closed after the test."""
    stores: list[DiskStore] = []

    def make(**settings: Any) -> DiskStore:
        stores.append(DiskStore(DiskSettings(**{"path": str(path), **settings})))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def block(number: int, size: int = 1000) -> KVBlock:
    return KVBlock(blake2b(bytes([number]), digest_size=32).digest(), memoryview(random.Random(number).randbytes(size)))


def loaded(store: DiskStore, *blocks: KVBlock) -> list[bool]:
    """Return which of ``blocks`` the store has; assert that their content is right."""
    results = store.load([block.key for block in blocks], time.monotonic() + 60)
    for block, result in zip(blocks, results, strict=True):
        assert isinstance(result, KVStoreError) or result == block.data
    return [not isinstance(result, KVStoreError) for result in results]


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.kv"))


def test_files_are_for_the_owner_only(path: Path, opened: Open) -> None:
    opened().store([block(1)])
    for entry in path.rglob("*"):
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600), entry
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("remainder", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 999])
def test_an_incomplete_last_block_is_skipped(path: Path, opened: Open, remainder: int) -> None:
    blocks = [block(number) for number in range(3)]
    opened().store(blocks)
    (file,) = files(path)
    os.truncate(file, 2 * (HEADER_BYTES + 1000) + remainder)
    second = opened()
    assert loaded(second, *blocks) == [True, True, False]
    second.store(blocks)
    assert loaded(opened(), *blocks) == [True, True, True]


@pytest.mark.parametrize("offset", range(0, HEADER_BYTES + 1000, 97))
def test_a_changed_byte_costs_that_block_only(path: Path, opened: Open, offset: int) -> None:
    blocks = [block(number) for number in range(3)]
    opened().store(blocks)
    (file,) = files(path)
    content = bytearray(file.read_bytes())
    content[HEADER_BYTES + 1000 + offset] ^= 1
    file.write_bytes(content)
    second = opened()
    assert loaded(second, *blocks) == [True, False, True]
    assert second.lookup([block.key for block in blocks]) == [True, False, True]


def test_foreign_files_are_ignored(path: Path, opened: Open) -> None:
    opened().store([block(1)])
    (folder,) = {file.parent for file in files(path)}
    (folder / "0.kv").write_bytes(random.Random(1).randbytes(3_000_000) + b"SPKV" * 1000)
    (folder / "1.kv").write_bytes(b"")
    (folder / "2.kv").symlink_to("/dev/zero")
    (folder / "notes.txt").write_text("mine")
    assert loaded(opened(), block(1), block(2)) == [True, False]
    assert (folder / "notes.txt").exists()


def test_blocks_of_another_server_are_found(opened: Open) -> None:
    first, second = opened(), opened()
    first.store([block(1)])
    until(lambda: second.lookup([block(1).key])[0])
    assert loaded(second, block(1)) == [True]


def test_a_block_that_was_stored_again_replaces_its_damaged_copy(path: Path, opened: Open) -> None:
    first = opened()
    first.store([block(1), block(2)])
    first.close()
    (file,) = files(path)
    content = bytearray(file.read_bytes())
    content[HEADER_BYTES + 500] ^= 1
    file.write_bytes(content)
    second = opened()
    assert loaded(second, block(1), block(2)) == [False, True]
    second.store([block(1)])
    second.close()
    assert loaded(opened(), block(1), block(2)) == [True, True]


@pytest.mark.parametrize("change", ["found", "removed"])
def test_a_file_system_that_hangs_keeps_nobody_from_the_index(
    path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    store, other = opened(), opened(bytes=40_000)
    store.store([block(1)])
    other.store([block(number) for number in range(2, 10)])
    until(lambda: all(store.lookup([block(2).key, block(9).key])))
    answered, fstat = list[bool](), os.fstat

    def slow(fd: int) -> os.stat_result:
        if threading.current_thread().name == "kv-disk" and all(answered):
            answer = threading.Event()
            threading.Thread(target=lambda: (store.lookup([block(1).key]), store.stats(), answer.set())).start()
            answered.append(answer.wait(20))
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", slow)
    if change == "found":
        other.store([block(10)])
        until(lambda: store.lookup([block(10).key])[0])
    else:
        files(path)[1].unlink()
        until(lambda: not store.lookup([block(2).key])[0])
    until(lambda: len(answered) > 2 or not all(answered))
    assert all(answered)


def test_a_directory_that_is_removed_is_made_again(path: Path, opened: Open) -> None:
    store = opened()
    store.store([block(1)])
    shutil.rmtree(path)
    assert loaded(store, block(1)) == [False]
    store.store([block(2)])
    assert loaded(store, block(2)) == [True]
    assert loaded(opened(), block(1), block(2)) == [False, True]


def test_a_full_disk_costs_only_the_blocks_that_do_not_fit(
    path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write = opened(), os.pwritev

    def full(fd: int, parts: list[memoryview], offset: int) -> int:
        if offset > 2500:
            raise OSError(28, "No space left on device")
        return write(fd, [parts[0][:400]], offset)  # the system may write less than it is given

    monkeypatch.setattr(os, "pwritev", full)
    store.store([block(0)])
    store.store([block(1)])
    with pytest.raises(KVStoreError, match="No space left"):
        store.store([block(2)])
    monkeypatch.undo()
    assert loaded(store, block(0), block(1), block(2)) == [True, True, False]
    store.store([block(2)])
    assert loaded(opened(), block(0), block(1), block(2)) == [True, True, True]


def test_the_file_of_this_server_is_removed_if_older_files_do_not_suffice(path: Path, opened: Open) -> None:
    opened(bytes=10_000_000).store([block(0, 150_400 - HEADER_BYTES)])  # it is being written to, and stays
    before = opened(bytes=160_000)
    before.store([block(1, 4000)])
    before.close()
    store = opened(bytes=160_000)
    store.store([block(2, 1000 - HEADER_BYTES)])
    assert len(files(path)) == 3
    store.store([block(3, 9000 - HEADER_BYTES)])
    assert loaded(store, block(1, 4000), block(2, 1000 - HEADER_BYTES), block(3, 9000 - HEADER_BYTES)) == [
        *(False, False, True)
    ]


@pytest.mark.parametrize(("eviction", "kept"), [("lru", True), ("fifo", False)])
def test_the_eviction_policy_decides_what_is_removed(opened: Open, eviction: str, kept: bool) -> None:
    store = opened(bytes=40_000, eviction=eviction)
    for number in range(60):
        store.store([block(number)])
        loaded(store, block(0))
    assert loaded(store, block(0), block(2), block(59)) == [kept, False, True]


def test_a_server_learns_that_another_one_emptied_the_directory(opened: Open) -> None:
    first, second = opened(), opened()
    first.store([block(1)])
    second.clear()
    assert loaded(first, block(1)) == [False]
    first.store([block(2)])
    assert loaded(opened(), block(1), block(2)) == [False, True]


def test_a_damaged_generation_forgets_everything(path: Path, opened: Open) -> None:
    first = opened()
    first.store([block(1)])
    (path / "generation").write_bytes(b"\xff\x00")
    second = opened()
    assert loaded(second, block(1)) == [False]
    second.store([block(1)])
    assert loaded(opened(), block(1)) == [True]


def test_a_directory_with_other_contents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(ConfigError, match="is not empty, and not a directory of KV blocks"):
        DiskStore(DiskSettings(path=str(tmp_path)))


def test_a_directory_that_others_can_write_to_is_refused(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)
    with pytest.raises(ConfigError, match="other users can write"):
        DiskStore(DiskSettings(path=str(path)))


@pytest.mark.parametrize(
    ("text", "size"), [("50GB", 50 << 30), ("512 mb", 512 << 20), ("1.5k", 1536), ("7", 7), (9, 9), ("2TiB", 2 << 40)]
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "GB", "many", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        parse_bytes(text)
