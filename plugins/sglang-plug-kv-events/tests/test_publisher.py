"""Batches over real sockets: order, replay, snapshots, formats, and addresses."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from sglang_plug_kv_events import Settings, of_replica
from sglang_plug_kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, CachedBlocks, Scope
from sglang_plug_kv_events.publisher import EventPublisher, EventSockets
from sglang_plug_kv_events.subscriber import Subscriber
from sglang_plug_kv_events.wire import EventFormat

SIZE = 2
TIMEOUT = 60.0


class Engine:
    """A publisher, and the blocks that it has published."""

    def __init__(self, folder: Path, *, kept: int = 100, format: str = "array") -> None:
        self.addresses = (f"ipc://{folder}/events", f"ipc://{folder}/replay")
        sockets = EventSockets(*self.addresses, connect=False, high_water_mark=1000, replayed=kept + 2)
        encode = EventFormat(format, SIZE, "GPU", 3).encode
        self.publisher = EventPublisher(sockets, "kv-events", encode, kept)
        self.blocks: dict[int, int | None] = {}
        self._random = random.Random(5)

    def store(self, block: int, parent: int | None = None) -> None:
        self.blocks[block] = parent
        self.publisher.publish(BlockStored([block], parent, array("q", [block, block]), Scope("poet", ("salt",))))

    def remove(self, *blocks: int) -> None:
        for block in blocks:
            del self.blocks[block]
        self.publisher.publish(BlockRemoved(blocks))

    def clear(self) -> None:
        self.blocks.clear()
        self.publisher.publish(AllBlocksCleared())

    def change(self, count: int) -> None:
        """Store and remove blocks at random, ends of prefixes first."""
        for number in range(count):
            block = len(self.blocks) * 1000 + number
            leaves = self.blocks.keys() - self.blocks.values()
            if self.blocks and self._random.random() < 0.4:
                self.remove(self._random.choice(sorted(leaves)))
            elif block not in self.blocks:
                self.store(block, self._random.choice([None, *self.blocks]))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path, kept=8)
    yield engine
    engine.publisher.close()


def parents(subscriber: Subscriber) -> dict[int, int | None]:
    return {number: block.parent for number, block in subscriber.blocks.items()}


def caught_up(engine: Engine, subscriber: Subscriber) -> None:
    deadline = time.monotonic() + TIMEOUT
    while parents(subscriber) != engine.blocks:
        assert time.monotonic() < deadline, f"{len(subscriber.blocks)} blocks, not {len(engine.blocks)}"
        if not subscriber.receive(0.02):
            subscriber.replay()


def receives(engine: Engine, subscriber: Subscriber) -> None:
    """Publish until the subscription has reached the publisher."""
    block = 1 << 40
    engine.store(block)
    while not subscriber.receive(0.1):
        block += 1
        engine.store(block)
    caught_up(engine, subscriber)


def test_events_arrive_in_order(engine: Engine) -> None:
    subscriber = Subscriber(*engine.addresses)
    assert subscriber.next > 0 and not subscriber.blocks  # the first batch says that the cache is empty
    engine.change(300)
    caught_up(engine, subscriber)
    engine.clear()
    caught_up(engine, subscriber)
    assert subscriber.replica == 3
    subscriber.close()


def test_a_subscriber_catches_up_after_a_break(engine: Engine) -> None:
    subscriber = Subscriber(*engine.addresses)
    engine.store(1)
    caught_up(engine, subscriber)
    subscriber.disconnect()
    expected = subscriber.next
    engine.store(2, 1)
    assert set(subscriber.connect()) <= {expected}  # only what was missed, if it was sent by then
    caught_up(engine, subscriber)
    subscriber.close()


def test_batches_that_are_not_kept_are_replayed_as_the_blocks_that_they_left(engine: Engine) -> None:
    first = Subscriber(*engine.addresses)
    for _ in range(30):
        engine.change(5)
        caught_up(engine, first)
    late = Subscriber(*engine.addresses)
    assert parents(late) == engine.blocks
    late.next = 0
    numbers = late.replay()
    assert list(numbers) == list(range(numbers[0], numbers[0] + 9)) and engine.publisher.batches > 20
    assert {(block.tokens, block.adapter, block.keys) for number, block in late.blocks.items()} == {
        ((number, number), "poet", ("salt",)) for number in engine.blocks
    }
    first.disconnect()
    for _ in range(30):
        engine.change(5)
        caught_up(engine, late)
    assert first.connect()[0] > first.next - 10 > numbers[-1]
    caught_up(engine, first)
    for subscriber in (first, late):
        subscriber.close()


@pytest.mark.parametrize("is_notified", [False, True])
def test_a_new_engine_at_the_same_address_is_noticed(is_notified: bool, tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    subscriber = Subscriber(*engine.addresses)
    for _ in range(20):
        engine.change(5)
        caught_up(engine, subscriber)
    engine.publisher.close()
    again = Engine(tmp_path)
    again.store(1)
    while is_notified and not subscriber.receive(0.1):  # messages are lost until the socket has connected again
        again.store(len(again.blocks) + 1, len(again.blocks))
    caught_up(again, subscriber)
    subscriber.close()
    again.publisher.close()


def test_what_is_no_request_is_ignored(engine: Engine) -> None:
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(engine.addresses[1])
        wrong = ((b"",), (b"x" * 8,), (b"", b"x"), (b"a", b"x" * 8), (b"", b"", b"x" * 8))
        for frames in (*wrong, (b"", b"\xff" * 8)):
            dealer.send_multipart(frames)
        assert dealer.poll(TIMEOUT * 1000)
        assert dealer.recv_multipart() == [b"", b"\xff" * 8, b""]  # the last one, from a number far ahead on
    context.term()
    subscriber = Subscriber(*engine.addresses)
    engine.store(1)
    caught_up(engine, subscriber)
    subscriber.close()


def test_the_last_events_are_sent_before_the_end(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    subscriber = Subscriber(*engine.addresses)
    receives(engine, subscriber)
    engine.change(50)
    engine.publisher.close()
    while parents(subscriber) != engine.blocks:  # without a replay, which nobody would answer
        assert subscriber.receive(TIMEOUT)
    subscriber.close()


def test_subscribers_read_both_formats(tmp_path: Path) -> None:
    engine = Engine(tmp_path, format="map")
    subscriber = Subscriber(*engine.addresses)
    engine.change(100)
    caught_up(engine, subscriber)
    subscriber.close()
    engine.publisher.close()


def test_what_is_left_in_the_cache_becomes_few_events() -> None:
    blocks = CachedBlocks()
    blocks.apply([BlockStored([1, 2, 3], None, array("q", range(6)), Scope())])
    blocks.apply([BlockStored([4], 2, array("q", [7, 7]), Scope()), BlockRemoved([3])])
    blocks.apply([BlockStored([5], None, array("q", [9, 9]), Scope("poet"))])
    assert list(blocks.events()) == [
        AllBlocksCleared(),
        BlockStored([1, 2, 4], None, array("q", [0, 1, 2, 3, 7, 7]), Scope()),
        BlockStored([5], None, array("q", [9, 9]), Scope("poet")),
    ]


def test_addresses_of_replicas_differ() -> None:
    assert of_replica("tcp://*:5557", 0) == "tcp://*:5557"
    assert of_replica("tcp://[::1]:5557", 2) == "tcp://[::1]:5559"
    assert of_replica("ipc:///tmp/events", 1) == "ipc:///tmp/events_dp1"
    assert of_replica("", 1) == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint": "5557"}, "must begin with tcp"),
        ({"endpoint": "tcp://127.0.0.1"}, "must end with a port"),
        ({"replay_endpoint": "tcp://127.0.0.1:1"}, "needs endpoint"),
        ({"format": "json"}, "array, map"),
        ({"block_size": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**settings)
