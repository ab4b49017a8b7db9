"""Stores that send blocks to each other accept only whole blocks, and only from senders with the secret."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import zmq

from sglang_plug import ConfigError, KVBlock, KVBlockPart, KVStoreError
from sglang_plug.testing import check_kv_store
from sglang_plug_backends.kv_stores.settings import TransferSettings
from sglang_plug_backends.kv_stores.transfer.example import open_store
from sglang_plug_backends.kv_stores.transfer.messages import BLOCK, COMPLETE, LACKS
from sglang_plug_backends.kv_stores.transfer.secret import VARIABLE, CurveKeys
from sglang_plug_backends.kv_stores.transfer.store import TransferStore

SECRET = "a secret that the engines share"
Open = Callable[..., TransferStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return ``opened(secret, **settings)``, which opens a store that is closed after the test."""
    stores: list[TransferStore] = []

    def make(secret: str = SECRET, **settings: Any) -> TransferStore:
        file = tmp_path / f"secret-{len(stores)}"
        file.write_text(secret)
        stores.append(TransferStore(TransferSettings(secret_file=str(file), **settings)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def block(number: int, size: int = 1000) -> KVBlock:
    """Return a block with a key and content that depend on ``number``."""
    key = blake2b(number.to_bytes(4, "big"), digest_size=32).digest()
    return KVBlock(key, memoryview(random.Random(number).randbytes(size)))


def keys_of(blocks: list[KVBlock]) -> list[bytes]:
    """Return the keys of blocks."""
    return [item.key for item in blocks]


def until(holds: Callable[[], Any]) -> None:
    """Wait until ``holds()`` is true."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def has_exactly(store: TransferStore, blocks: list[KVBlock]) -> bool:
    """Report whether a store has exactly these blocks, with their content."""
    results = store.load(keys_of(blocks), time.monotonic() + 60)
    return store.stats().blocks == len(blocks) and all(
        isinstance(result, memoryview) and result == item.data for item, result in zip(blocks, results, strict=True)
    )


def test_it_keeps_the_contract_of_stores() -> None:
    check_kv_store("transfer", make=open_store)


def test_blocks_are_sent_before_the_transfer_is_complete(opened: Open) -> None:
    prefill, decode = opened(), opened()
    blocks = [block(number, 100_000) for number in range(40)]
    prefill.store(blocks)
    prefill.send(keys_of(blocks[:25]), decode.address)
    until(lambda: decode.stats().blocks == 25)
    assert not decode.received("first")
    prefill.send(keys_of(blocks[25:]), decode.address, "first")
    until(lambda: decode.received("first"))
    assert has_exactly(decode, blocks)
    assert not decode.received("first"), "it is told once"


def test_blocks_that_the_receiver_has_or_the_sender_lacks_are_skipped(opened: Open) -> None:
    prefill, decode = opened(), opened()
    blocks = [block(number) for number in range(4)]
    other = KVBlock(blocks[0].key, memoryview(b"what the receiver has already"))
    prefill.store(blocks[:3])
    decode.store([other])
    prefill.send(keys_of(blocks), decode.address, "one")
    until(lambda: decode.received("one"))
    assert has_exactly(decode, [other, *blocks[1:3]])


def parts_of(blocks: list[KVBlock], layer: int, layers: int = 4) -> list[KVBlockPart]:
    """Return the parts of blocks that belong to one layer."""
    parts = []
    for item in blocks:
        step = item.data.nbytes // layers
        content = item.data[layer * step : (layer + 1) * step]
        parts.append(KVBlockPart(item.key, layer * step, item.data.nbytes, content))
    return parts


def test_blocks_of_which_all_parts_were_sent_are_present(opened: Open) -> None:
    prefill, decode = opened(), opened()
    blocks = [block(number, 40_000) for number in range(10)]
    for layer in range(4):
        assert decode.stats().blocks == 0
        prefill.send_parts(parts_of(blocks, layer), decode.address)
    prefill.send([], decode.address, "one")
    until(lambda: decode.received("one"))
    assert has_exactly(decode, blocks), "though the sender has no block to send"
    assert decode.stats().bytes < 11 * 40_000


def test_parts_of_two_engines_become_one_block(opened: Open) -> None:
    prefills, decode = [opened(), opened()], opened()
    blocks = [block(number, 40_000) for number in range(4)]
    for layer in range(4):
        for prefill in prefills if layer < 3 else prefills[:1]:
            prefill.send_parts(parts_of(blocks, layer), decode.address)
    for number, prefill in enumerate(prefills):
        prefill.send([], decode.address, str(number))
        until(lambda number=number: decode.received(str(number)))  # type: ignore[misc]
    assert has_exactly(decode, blocks)


def test_parts_of_blocks_that_the_receiver_has_are_not_sent(opened: Open) -> None:
    prefill, decode = opened(), opened()
    present = KVBlock(block(0).key, memoryview(b"what the receiver has already"))
    decode.store([present])
    for layer in range(4):
        prefill.send_parts(parts_of([block(0), block(1)], layer), decode.address)
    prefill.send([], decode.address, "one")
    until(lambda: decode.received("one"))
    assert has_exactly(decode, [present, block(1)])


def test_a_block_without_its_first_part_is_sent_whole(opened: Open) -> None:
    prefill, decode = opened(), opened()
    prefill.store([block(0)])
    for layer in range(1, 4):
        prefill.send_parts(parts_of([block(0)], layer), decode.address)
    prefill.send([block(0).key], decode.address, "one")
    until(lambda: decode.received("one"))
    assert has_exactly(decode, [block(0)])


def test_parts_count_against_the_budget_and_are_dropped_with_the_blocks(opened: Open) -> None:
    prefill, decode = opened(), opened(bytes=100_000)
    decode.store([block(number, 20_000) for number in range(4)])
    blocks = [block(10 + number, 20_000) for number in range(20)]
    for layer in range(3):
        prefill.send_parts(parts_of(blocks, layer), decode.address)
    prefill.send([], decode.address, "one")
    until(lambda: decode.received("one"))
    stats = decode.stats()
    assert stats.bytes <= 100_000 and stats.blocks >= 2, "parts take half of the budget at most"
    decode.clear()
    assert (decode.stats().blocks, decode.stats().bytes) == (0, 0)
    prefill.send_parts(parts_of(blocks, 3), decode.address)
    prefill.send([], decode.address, "two")
    until(lambda: decode.received("two"))
    assert decode.stats().blocks == 0, "the parts before were dropped"


def test_a_receiver_that_restarts_gets_blocks_whole(opened: Open) -> None:
    prefill, decode = opened(timeout_seconds=0.5), opened()
    blocks, port = [block(number) for number in range(3)], int(decode.address.rpartition(":")[2])
    prefill.store(blocks)
    prefill.send_parts(parts_of(blocks, 0), decode.address)
    decode.close()
    again = opened(port=port)

    def is_sent() -> bool:
        try:
            for layer in range(1, 4):
                prefill.send_parts(parts_of(blocks, layer), again.address)
            prefill.send(keys_of(blocks), again.address, "one")
        except KVStoreError:
            return False
        return True

    until(is_sent)
    until(lambda: again.received("one"))
    assert has_exactly(again, blocks)


def test_several_engines_send_to_one(opened: Open) -> None:
    decode, prefills = opened(), [opened() for _ in range(3)]
    blocks = [block(number, 50_000) for number in range(60)]

    def send(number: int) -> None:
        own = blocks[number::3]
        prefills[number].store(own)
        prefills[number].send(keys_of(own), decode.address, f"transfer {number}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for number in range(3):
        until(lambda number=number: decode.received(f"transfer {number}"))
    for thread in threads:
        thread.join()
    assert has_exactly(decode, blocks)


def test_a_store_with_another_secret_can_neither_send_nor_ask(opened: Open) -> None:
    stranger, decode = opened("another secret of enough bytes", timeout_seconds=0.3), opened()
    decode.store([block(1)])
    stranger.store([block(2)])
    for keys in ([block(2).key], []):
        with pytest.raises(KVStoreError, match="another secret"):
            stranger.send(keys, decode.address, "forged")
    assert has_exactly(decode, [block(1)]) and not decode.received("forged")
    friend = opened()
    friend.store([block(3)])
    friend.send([block(3).key], decode.address, "real")
    until(lambda: decode.received("real"))


def raw_socket(address: str, *, keys: CurveKeys | None) -> zmq.Socket[bytes]:
    """Open a socket that is connected to a store, with keys of its own or without encryption."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    if keys is not None:
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        socket.setsockopt(zmq.CURVE_SERVERKEY, CurveKeys.of(SECRET.encode()).public)
    socket.connect(address)
    return socket


def test_a_client_without_encryption_is_not_heard(opened: Open) -> None:
    decode = opened()
    with raw_socket(decode.address, keys=None) as socket:
        socket.send_multipart([BLOCK, block(1).key, b"forged"])
        socket.send_multipart([LACKS, b"1", block(1).key])
        friend = opened()
        friend.store([block(2)])
        friend.send([block(2).key], decode.address, "real")
        until(lambda: decode.received("real"))
        assert not socket.poll(200)
    assert has_exactly(decode, [block(2)])


def test_a_client_that_knows_only_the_public_key_is_refused(opened: Open) -> None:
    decode = opened()
    with raw_socket(decode.address, keys=CurveKeys(*zmq.curve_keypair())) as socket:
        with suppress(zmq.Again):  # the connection may have been refused already, and would block the message for ever
            socket.send_multipart([LACKS, b"1", block(1).key], flags=zmq.NOBLOCK)
        assert not socket.poll(300)


def test_messages_that_cannot_be_understood_are_skipped(opened: Open) -> None:
    decode = opened()
    with raw_socket(decode.address, keys=CurveKeys.of(SECRET.encode())) as socket:
        for message in (
            [b""],
            [b"X", b"unknown"],
            [BLOCK, b"short key", b"content"],
            [BLOCK, block(1).key],
            [LACKS, b"1", b"no whole keys"],
            [LACKS],
            [COMPLETE, b"\xff\xfe"],
            [COMPLETE],
        ):
            socket.send_multipart(message)
        socket.send_multipart([LACKS, b"7", block(1).key + block(2).key])
        assert socket.poll(60_000) and socket.recv_multipart() == [b"7", b"\x01\x01"]
    assert decode.stats().blocks == 0


def test_a_receiver_that_is_gone_costs_an_error_and_one_that_returns_is_used(opened: Open) -> None:
    prefill, decode = opened(timeout_seconds=0.5), opened()
    prefill.store([block(1)])
    prefill.send([block(1).key], decode.address)
    port = int(decode.address.rpartition(":")[2])
    address = decode.address
    decode.close()
    with pytest.raises(KVStoreError, match=address):
        for _ in range(20):  # some messages may still be accepted by the connection
            prefill.send([block(1).key], address)
    again = opened(port=port)

    def is_sent() -> bool:
        try:
            prefill.send([block(1).key], address, "again")
        except KVStoreError:
            return False
        return True

    until(is_sent)
    until(lambda: again.received("again"))
    assert has_exactly(again, [block(1)])


STALLED = """
    import sys, zmq
    from sglang_plug_backends.kv_stores.transfer.secret import CurveKeys
    keys = CurveKeys.of(sys.argv[1].encode())
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.set_hwm(1)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
    print(socket.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    route, kind, number, keys = socket.recv_multipart()
    socket.send_multipart([route, number, b"\\1" * (len(keys) // 32)])
    sys.stdin.read()  # and reads no block
"""


def test_sending_does_not_wait_for_ever_for_a_receiver_that_reads_nothing(opened: Open) -> None:
    prefill = opened(timeout_seconds=0.3)
    blocks = [block(number, 1 << 20) for number in range(64)]
    prefill.store(blocks)
    command = [sys.executable, "-c", textwrap.dedent(STALLED), SECRET]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stalled:
        assert stalled.stdout is not None
        address = f"tcp://127.0.0.1:{stalled.stdout.readline().strip()}"
        with pytest.raises(KVStoreError, match="too slow"):
            prefill.send(keys_of(blocks), address)
        stalled.kill()


@pytest.mark.parametrize(("secret", "problem"), [("", "is missing"), ("short", "has 5 bytes")])
def test_a_secret_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str, problem: str) -> None:
    monkeypatch.setenv(VARIABLE, secret)
    with pytest.raises(ConfigError, match=problem):
        TransferStore(TransferSettings())
    with pytest.raises(ConfigError, match="cannot be read"):
        TransferStore(TransferSettings(secret_file=str(tmp_path / "no")))


def test_the_secret_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    prefill, decode = TransferStore(TransferSettings()), opened()
    try:
        prefill.send([], decode.address, "one")
        until(lambda: decode.received("one"))
    finally:
        prefill.close()


def test_an_address_that_cannot_be_listened_at_is_named(opened: Open) -> None:
    port = int(opened().address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=f"cannot listen at tcp://127.0.0.1:{port}"):
        opened(port=port)


def test_an_interface_can_be_named_instead_of_an_address(opened: Open) -> None:
    prefill, decode = opened(), opened(host="lo")
    assert decode.address.startswith("tcp://127.0.0.1:")
    prefill.send([], decode.address, "one")
    until(lambda: decode.received("one"))


@pytest.mark.parametrize(
    "settings", [{"bytes": "much"}, {"timeout_seconds": 0}, {"port": 70000}, {"host": "0.0.0.0"}, {"host": "*"}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        TransferSettings(**settings)
