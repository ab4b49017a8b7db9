"""Blocks that are stored again, because their store cannot be asked for them without waiting."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sglang_plug import KVBlock, KVStoreError
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.storage.tier import RECENT_SECONDS, RETRY_SECONDS, Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

KEYS = [bytes([number]) * KVBlock.KEY_BYTES for number in range(3)]
BLOCKS = [KVBlock(key, memoryview(bytes(8))) for key in KEYS]
NONE, ALL = [False] * len(KEYS), [True] * len(KEYS)


class Clock:
    """A clock whose time a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Remote(HostStore):
    """A store with slow lookups, which a test can delay or let fail."""

    index_in_memory = False
    verifies = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(HostSettings())
        self.clock, self.fails, self.load_seconds = clock, False, 0.0

    def store(self, blocks: Sequence[KVBlock]) -> None:
        if self.fails:
            raise KVStoreError("connection refused")
        super().store(blocks)

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        self.clock.now += self.load_seconds
        if self.clock.now >= deadline:
            return [KVStoreError("late")] * len(keys)
        return super().load(keys, deadline)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Remote:
    return Remote(clock)


@pytest.fixture
def tiers(store: Remote, clock: Clock) -> Tiers:
    return Tiers([Tier("remote", store, clock=clock)])


def test_blocks_that_were_stored_are_not_stored_again(tiers: Tiers) -> None:
    assert tiers.missing(KEYS) == ALL
    tiers.store(BLOCKS[:2])
    assert tiers.missing(KEYS) == [False, False, True]
    tiers.clear()
    assert tiers.missing(KEYS) == ALL


def test_blocks_that_another_server_stored_are_not_stored_again(tiers: Tiers, store: Remote) -> None:
    store.store(BLOCKS)
    assert tiers.locate(KEYS)
    assert tiers.missing(KEYS) == NONE


def test_blocks_are_stored_again_after_an_error(tiers: Tiers, store: Remote, clock: Clock) -> None:
    store.fails = True
    tiers.store(BLOCKS)
    assert tiers.missing(KEYS) == NONE, "copies are of no use while the store is left alone"
    store.fails = False
    clock.now += RETRY_SECONDS
    assert tiers.missing(KEYS) == ALL
    tiers.store(BLOCKS)
    assert (tiers.missing(KEYS), store.lookup(KEYS)) == (NONE, ALL)


def test_an_error_of_one_store_does_not_concern_another(clock: Clock) -> None:
    stores = [Remote(clock), Remote(clock)]
    tiers = Tiers([Tier(str(number), store, clock=clock) for number, store in enumerate(stores)])
    stores[1].fails = True
    tiers.store(BLOCKS)
    stores[1].fails = False
    clock.now += RETRY_SECONDS
    assert tiers.missing(KEYS) == ALL
    tiers.store(BLOCKS)
    assert tiers.missing(KEYS) == NONE and all(store.lookup(KEYS) == ALL for store in stores)


def test_blocks_that_the_store_dropped_are_stored_again_once_they_are_looked_for(tiers: Tiers, store: Remote) -> None:
    tiers.store(BLOCKS)
    store.delete(KEYS[1:])
    assert len(tiers.locate(KEYS)) == 1
    assert tiers.missing(KEYS) == [False, True, True]


def test_blocks_that_are_dropped_before_they_are_loaded_are_stored_again(
    tiers: Tiers, store: Remote, clock: Clock
) -> None:
    tiers.store(BLOCKS)
    located = tiers.locate(KEYS)
    store.delete(KEYS[1:])
    assert len(tiers.load(KEYS, located, clock.now + 1, 8)) == 1
    assert tiers.missing(KEYS) == [False, True, True]


def test_blocks_that_are_late_are_not_stored_again(tiers: Tiers, store: Remote, clock: Clock) -> None:
    tiers.store(BLOCKS)
    store.load_seconds = 2.0
    assert tiers.load(KEYS, tiers.locate(KEYS), clock.now + 1, 8) == []
    assert tiers.missing(KEYS) == NONE


def test_blocks_that_nobody_looked_for_are_stored_again_after_some_minutes(
    tiers: Tiers, store: Remote, clock: Clock
) -> None:
    tiers.store(BLOCKS)
    store.clear()  # their time to live is over, or another server was told to forget them
    clock.now += RECENT_SECONDS - 1
    assert tiers.missing(KEYS) == NONE
    clock.now += 1
    assert tiers.missing(KEYS) == ALL
    tiers.store(BLOCKS)
    assert (tiers.missing(KEYS), store.lookup(KEYS)) == (NONE, ALL)
