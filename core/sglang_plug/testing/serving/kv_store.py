"""Conformance test of KV stores: a block is returned as it was stored, or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sglang_plug.contracts.serving.kv_store import KVBlock, KVStore, KVStoreError, KVStoreStats, KVTransferStore
from sglang_plug.plugins.attribution import make_with_settings
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.lifecycle import released

from . import kv_blocks
from .kv_blocks import PREPARED, SIZES, OpenStore, block_content, block_key, block_of
from .kv_transfer import check_transfers

ROOM = 64 << 20
SMALL = 1 << 20
"""Budget of the store that is filled several times."""
FOREVER = 3600.0
THREADS, ROUNDS = 6, 30
LONGEST_LIFE = 0.06
"""Maximum time in seconds for which a process stores blocks before it is killed."""

SETTLING = 12.0
"""Seconds within which statistics show by default what was done before; those of a remote store may be late."""


def check_kv_store(
    store: str | OpenStore,
    *,
    make: OpenStore | None = None,
    durable: bool = False,
    kills: int | None = None,
    settling: float = SETTLING,
) -> None:
    """Check that a store returns each block as it was stored, or an error, whatever happens to it.

    Blocks of any size are stored, looked up, loaded, deleted and cleared, by several threads at once; the budget is
    kept, and a deadline that has passed does not raise. A durable store is opened again and by two servers at once, and
    processes that store blocks are killed at random moments. Blocks that one ``KVTransferStore`` sends to another
    arrive as they were stored.

    Args:
        store: the name that an installed plugin declared it under, or the same as ``make``.
        make: opens the store that belongs to a folder, with a budget in bytes; an importable function. Without it, the
            store is made with its default settings, and neither budget nor durability nor transfers are tested.
        durable: blocks are still there when a store is opened again.
        kills: number of processes that are killed; by default that of the environment's ``KV_STORE_KILLS``, or 24.
        settling: seconds within which ``stats`` shows what was done before.

    Raises ``AssertionError`` that names the rule that was broken, and ``PluginError`` for an unknown name.
    """
    with tempfile.TemporaryDirectory(prefix="kv-store-") as parent:
        folders = _folders(Path(parent))
        if callable(store):
            make = store
        with _opened(store, make, next(folders), ROOM) as opened:
            transfers = isinstance(opened, KVTransferStore)
            _check_round_trips(opened, settling)
            _check_misses(opened)
            _check_deadline(opened)
            _check_threads(opened)
            _check_clear(opened, settling)
        if make is None:
            return
        _check_close(make, next(folders))
        _check_budget(make, next(folders))
        if transfers:
            check_transfers(make, next(folders))
        if durable:
            _check_restart(make, next(folders))
            _check_two_servers(make, next(folders))
            check_kills(make, next(folders), int(os.environ.get("KV_STORE_KILLS", 24)) if kills is None else kills)


def _folders(parent: Path) -> Iterator[Path]:
    number = 0
    while True:
        folder = parent / str(number)
        folder.mkdir()
        yield folder
        number += 1


@contextmanager
def _opened(store: str | OpenStore, make: OpenStore | None, folder: Path, capacity: int) -> Iterator[KVStore]:
    if make is not None:
        opened = make(folder, capacity)
    else:
        assert isinstance(store, str)
        opened = make_with_settings(Plugins.discover().get("kv-store", store))
    assert isinstance(opened, KVStore), f"{type(opened).__name__} is not a KVStore"
    try:
        yield opened
    finally:
        opened.close()


def _load(store: KVStore, keys: Sequence[bytes], seconds: float = FOREVER) -> list[memoryview | KVStoreError]:
    results = store.load(keys, time.monotonic() + seconds)
    assert len(results) == len(keys), f"load() of {len(keys)} blocks returned {len(results)} results"
    for result in results:
        assert isinstance(result, memoryview | KVStoreError), (
            f"load() returned {type(result).__name__}, neither a memoryview nor a KVStoreError"
        )
    return results


def _check_blocks(store: KVStore, blocks: Sequence[KVBlock], where: str) -> int:
    """Check that no wrong block is loaded; return how many were loaded."""
    results = _load(store, [block.key for block in blocks])
    loaded = 0
    for block, result in zip(blocks, results, strict=True):
        if isinstance(result, KVStoreError):
            continue
        loaded += 1
        assert result.cast("B") == block.data.cast("B"), (
            f"{where}: load() returned {result.nbytes} bytes that are not the {block.data.nbytes} that were stored"
        )
    return loaded


def _check_round_trips(store: KVStore, settling: float) -> None:
    sizes = (*SIZES, 1 << 20)
    blocks = [block_of(block_key(0, number), size) for number, size in enumerate(sizes)]
    keys = [block.key for block in blocks]
    assert store.lookup(keys) == [False] * len(keys), "lookup() reports blocks that were never stored"
    for block in blocks[:2]:
        store.store([block])
    store.store(blocks)
    before = _settled_stats(store, settling, lambda stats: stats.blocks >= len(blocks))
    store.store(blocks)
    # the bytes of a remote store may include buffers of its server, which become smaller
    after = _settled_stats(store, settling, lambda stats: stats.blocks == before.blocks and stats.bytes <= before.bytes)
    assert after.blocks == before.blocks and after.bytes <= before.bytes, (
        f"blocks that are stored a second time must be left as they are, but stats() changes from {before} to {after}"
    )
    assert store.lookup(keys) == [True] * len(keys), "lookup() does not report blocks that were stored"
    for order in (blocks, blocks[::-1], blocks[3:4], []):
        loaded = _check_blocks(store, order, "after store()")
        assert loaded == len(order), f"load() returned {loaded} of {len(order)} stored blocks"
    wide = memoryview(bytes(256)).cast("H")  # any contiguous memory
    store.store([KVBlock(block_key(1, 0), wide)])
    assert _check_blocks(store, [KVBlock(block_key(1, 0), wide)], "of 16-bit items") == 1
    stats = store.stats()
    assert stats.blocks >= len(blocks) and stats.bytes > 0, f"stats() does not count all blocks: {stats}"
    store.delete([*keys[:2], block_key(9, 9)])
    assert store.lookup(keys)[:3] == [False, False, True], "delete() must drop the named blocks, and no others"
    _check_blocks(store, blocks, "after delete()")
    store.store(blocks[:2])
    assert _check_blocks(store, blocks, "stored after delete()") == len(blocks)


def _check_misses(store: KVStore) -> None:
    present, missing = block_of(block_key(0, 3), SIZES[3]), block_key(2, 0)
    results = _load(store, [missing, present.key, missing])
    assert isinstance(results[0], KVStoreError) and isinstance(results[2], KVStoreError), (
        "load() of a block that was never stored must return a KVStoreError instead of it"
    )
    assert not isinstance(results[1], KVStoreError), "a missing block must not keep load() from returning another one"


def _check_deadline(store: KVStore) -> None:
    blocks = [block_of(block_key(0, number), size) for number, size in enumerate(SIZES)]
    keys = [block.key for block in blocks]
    began = time.monotonic()
    for result, block in zip(_load(store, keys, -1.0), blocks, strict=True):
        assert isinstance(result, KVStoreError) or result == block.data, "load() after the deadline: a wrong block"
    assert time.monotonic() - began < 30, "load() must end soon when the deadline has passed"


def _check_threads(store: KVStore) -> None:
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        generator = random.Random(thread)
        try:
            for _ in range(ROUNDS):
                keys = [block_key(100, generator.randrange(40)) for _ in range(6)]
                store.store([block_of(key) for key in keys])
                store.lookup(keys)
                _check_blocks(store, [block_of(key) for key in keys], f"with {THREADS} threads")
                if generator.random() < 0.2:
                    store.delete(keys[:2])
                store.stats()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise AssertionError(f"several threads at once: {type(errors[0]).__name__}: {errors[0]}") from errors[0]


def _check_clear(store: KVStore, settling: float) -> None:
    blocks = [block_of(block_key(0, number), size) for number, size in enumerate(SIZES)]
    keys = [block.key for block in blocks]
    store.store(blocks)
    before = _settled_stats(store, settling, lambda stats: stats.blocks >= len(blocks))
    store.clear()
    assert not any(store.lookup(keys)), "lookup() reports blocks after clear()"
    assert _check_blocks(store, blocks, "after clear()") == 0, "load() returns blocks after clear()"
    # the bytes of a remote store may be those of its server, which needs some without blocks
    stats = _settled_stats(
        store, settling, lambda stats: stats.blocks == 0 and (not stats.bytes or stats.bytes < before.bytes)
    )
    assert stats.blocks == 0, f"after clear(), stats() reports {stats}"
    assert not stats.bytes or stats.bytes < before.bytes, f"after clear(), stats() reports {stats}, and {before} before"
    store.store(blocks)
    assert _check_blocks(store, blocks, "stored after clear()") == len(blocks), "nothing can be stored after clear()"


def _settled_stats(store: KVStore, settling: float, is_settled: Callable[[KVStoreStats], bool]) -> KVStoreStats:
    """Return the statistics once they are as expected, or after ``settling`` seconds."""
    deadline = time.monotonic() + settling
    while not is_settled(stats := store.stats()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return stats


def _check_close(make: OpenStore, folder: Path) -> None:
    """``close`` releases threads, files and sockets."""
    with released("close()"):
        store = make(folder, ROOM)
        store.store([block_of(block_key(10, 0))])
        _load(store, [block_key(10, 0)])
        store.close()


def _check_budget(make: OpenStore, folder: Path) -> None:
    store = make(folder, SMALL)
    try:
        blocks = [block_of(block_key(3, number), 50_000) for number in range(100)]
        for block in blocks:
            store.store([block])
            stats = store.stats()
            assert stats.bytes <= SMALL, f"a budget of {SMALL} bytes: stats() reports {stats.bytes}"
        kept = _check_blocks(store, blocks, "beyond the budget")
        assert 1 <= kept * 50_000 <= SMALL, f"a budget of {SMALL} bytes: {kept} blocks of 50000 bytes are kept"
        assert _check_blocks(store, blocks[-1:], "the last block") == 1, "the block that was stored last was dropped"
        store.store([block_of(block_key(3, 1000), 2 * SMALL)])
        assert store.stats().bytes <= SMALL, "a block that is larger than the budget must not be kept"
    finally:
        store.close()


def _check_restart(make: OpenStore, folder: Path) -> None:
    blocks = [block_of(block_key(4, number)) for number in range(40)]
    store = make(folder, ROOM)
    store.store(blocks)
    store.close()
    store = make(folder, ROOM)
    try:
        assert _check_blocks(store, blocks, "opened again") == len(blocks), "blocks are missing after close()"
        store.clear()
    finally:
        store.close()
    store = make(folder, ROOM)
    try:
        assert _check_blocks(store, blocks, "opened again") == 0, "blocks are back after clear()"
    finally:
        store.close()


def _check_two_servers(make: OpenStore, folder: Path) -> None:
    blocks = [block_of(block_key(5, number)) for number in range(40)]
    first, second = make(folder, ROOM), make(folder, ROOM)
    try:
        first.store(blocks[:30])
        second.store(blocks[10:])
        for store in (first, second):
            _check_blocks(store, blocks, "shared by two servers")
        second.clear()
        assert _check_blocks(first, blocks, "cleared by another server") == 0, "blocks are returned after clear()"
        first.store(blocks)
        assert _check_blocks(first, blocks, "stored after clear()") == len(blocks)
    finally:
        first.close()
        second.close()


def check_kills(make: OpenStore, folder: Path, kills: int) -> None:
    """Kill processes that store blocks; afterwards the store opens, and has correct blocks only.

    Raises ``AssertionError`` otherwise.
    """
    generator = random.Random(6)
    keys = [block_key(writer, number) for writer in range(kills) for number in range(PREPARED)]
    target = f"{make.__module__}:{make.__qualname__}"
    # As a script: its package imports torch, which takes seconds.
    command = [sys.executable, "-P", kv_blocks.__file__, target, str(folder), str(4 * SMALL)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as forker:
        assert forker.stdin is not None and forker.stdout is not None
        for writer in range(kills):
            print(writer, file=forker.stdin, flush=True)
            lines = [forker.stdout.readline().split(), forker.stdout.readline().split()]
            process = next((int(line[1]) for line in lines if line[:1] == ["process"]), None)
            assert process is not None and ["storing"] in lines, f"{target} cannot be opened by another process"
            time.sleep(generator.uniform(0, LONGEST_LIFE))
            os.kill(process, signal.SIGKILL)
            assert forker.stdout.readline() == "ended\n"
            _check_after_kill(make, folder, keys[: (writer + 1) * PREPARED], writer)
        forker.stdin.close()


def _check_after_kill(make: OpenStore, folder: Path, keys: Sequence[bytes], writer: int) -> None:
    where = f"after {writer + 1} processes were killed while storing"
    store = make(folder, 4 * SMALL)
    try:
        present = [key for key, is_present in zip(keys, store.lookup(keys), strict=True) if is_present]
        _check_blocks(store, [block_of(key) for key in present], where)
        block = block_of(block_key(7, writer))
        store.store([block])
        assert _check_blocks(store, [block], where) == 1, f"{where}: nothing can be stored any more"
        assert store.stats().bytes <= 4 * SMALL, f"{where}: the budget is exceeded: {store.stats()}"
        assert block_content(block.key) == block.data
    finally:
        store.close()
