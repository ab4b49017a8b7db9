"""Conformance test of KV stores that send blocks to each other; a part of ``check_kv_store``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from sglang_plug.contracts.serving.kv_store import KVBlock, KVBlockPart, KVStoreError, KVTransferStore

from .kv_blocks import OpenStore, block_key, block_of

ROOM = 64 << 20
SIZE = 40_000
TIMEOUT_SECONDS = 30.0
PAUSE = 0.1
"""Seconds after which a transfer that must not be complete would probably be."""


def check_transfers(make: OpenStore, folder: Path, timeout: float = TIMEOUT_SECONDS) -> None:
    """Check that blocks, and blocks that are sent in parts, arrive at another store as they were stored.

    ``timeout``: seconds within which a transfer arrives. Raises ``AssertionError`` that names the rule that was broken.
    """
    sender, receiver = make(folder, ROOM), make(folder, ROOM)
    try:
        assert isinstance(sender, KVTransferStore) and isinstance(receiver, KVTransferStore)
        assert sender.address != receiver.address, "two stores must not receive at the same address"
        _check_blocks_sent(sender, receiver, timeout)
        _check_parts_sent(sender, receiver, timeout)
        _check_skipped(sender, receiver, timeout)
    finally:
        sender.close()
        receiver.close()


def _check_blocks_sent(sender: KVTransferStore, receiver: KVTransferStore, timeout: float) -> None:
    blocks = [block_of(block_key(20, number)) for number in range(20)]
    sender.store(blocks)
    sender.send(_keys(blocks[:12]), receiver.address)
    time.sleep(PAUSE)
    assert not receiver.received("first"), "received() is true before send() completes the transfer"
    sender.send(_keys(blocks[12:]), receiver.address, "first")
    _wait(
        lambda: receiver.received("first"), "received() is never true after send() has completed the transfer", timeout
    )
    _check_present(receiver, blocks, "sent by send()", timeout)
    assert not receiver.received("first"), "received() must be true only once for each transfer"
    assert not receiver.received("second"), "received() is true for a transfer that nobody has begun"
    sender.send([], receiver.address, "second")
    _wait(lambda: receiver.received("second"), "received() is never true for a transfer without blocks", timeout)


def _check_parts_sent(sender: KVTransferStore, receiver: KVTransferStore, timeout: float) -> None:
    """Parts of some blocks are sent, the last part of others is lost, and all blocks are completed by ``send``."""
    blocks = [block_of(block_key(21, number), SIZE) for number in range(6)]
    starts = [0, 1, 1000, 30_000, SIZE]
    for start, end in pairwise(starts):
        sent = blocks if end < SIZE else blocks[:3]
        parts = [KVBlockPart(block.key, start, SIZE, block.data[start:end]) for block in sent]
        sender.send_parts(parts, receiver.address)
    time.sleep(PAUSE)
    results = receiver.load(_keys(blocks), time.monotonic() + timeout)
    for block, result in zip(blocks, results, strict=True):
        assert isinstance(result, KVStoreError) or result.cast("B") == block.data, (
            "after send_parts(): load() returns a block that is not complete"
        )
    assert not any(receiver.lookup(_keys(blocks[3:]))), "after send_parts(): lookup() reports a block that lacks a part"
    sender.store(blocks)
    sender.send(_keys(blocks), receiver.address, "parts")
    _wait(lambda: receiver.received("parts"), "received() is never true after blocks were sent in parts", timeout)
    _check_present(receiver, blocks, "sent by send_parts() and send()", timeout)


def _check_skipped(sender: KVTransferStore, receiver: KVTransferStore, timeout: float) -> None:
    """Blocks that the sender does not have are skipped, and those that the receiver has are left as they are."""
    present, missing = block_of(block_key(22, 0)), block_of(block_key(22, 1))
    other = KVBlock(present.key, memoryview(b"what the receiver has already"))
    receiver.store([other])
    sender.store([present])
    sender.send(_keys([present, missing]), receiver.address, "skipped")
    _wait(
        lambda: receiver.received("skipped"), "received() is never true if the sender lacks one of the blocks", timeout
    )
    _check_present(receiver, [other], "present before send()", timeout)
    assert receiver.lookup([missing.key]) == [False], "send() sends a block that the sender does not have"


def _check_present(store: KVTransferStore, blocks: Sequence[KVBlock], where: str, timeout: float) -> None:
    for block, result in zip(blocks, store.load(_keys(blocks), time.monotonic() + timeout), strict=True):
        assert not isinstance(result, KVStoreError), f"{where}: a block is missing when the transfer is complete"
        assert result.cast("B") == block.data.cast("B"), f"{where}: load() returns a block that is not what was stored"


def _keys(blocks: Sequence[KVBlock]) -> list[bytes]:
    return [block.key for block in blocks]


def _wait(holds: Callable[[], bool], problem: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, problem
        time.sleep(0.005)
