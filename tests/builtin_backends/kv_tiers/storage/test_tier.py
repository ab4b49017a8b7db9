"""The measured transfer rate of a tier's store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sglang_plug import KVBlock, KVStoreError
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.storage.tier import RETRY_SECONDS, Tier

BLOCK = 1000
KEYS = [bytes([number]) * 32 for number in range(10)]


class Crawling(HostStore):
    """A store that takes a second for each block, and stops at the deadline."""

    def __init__(self) -> None:
        super().__init__(HostSettings())
        self.now = 100.0
        self.before_load: Callable[[], None] = lambda: None
        self.store([KVBlock(key, memoryview(bytes(BLOCK))) for key in KEYS])

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        self.before_load()
        results: list[memoryview | KVStoreError] = []
        for block in super().load(keys, deadline):
            if self.now < deadline and not isinstance(block, KVStoreError):
                self.now += 1
                results.append(block)
            else:
                results.append(KVStoreError("late"))
        return results


@pytest.fixture
def store() -> Crawling:
    return Crawling()


@pytest.fixture
def tier(store: Crawling) -> Tier:
    return Tier("crawling", store, clock=lambda: store.now)


def test_blocks_that_arrived_before_the_deadline_tell_the_rate(tier: Tier, store: Crawling) -> None:
    assert sum(block is not None for block in tier.load(KEYS, store.now + 3, BLOCK)) == 3
    assert tier.load_seconds(10 * BLOCK) == pytest.approx(10)


def test_a_store_that_is_late_with_every_block_is_slow(tier: Tier, store: Crawling) -> None:
    def wait() -> None:
        store.now += 7

    store.before_load = wait
    assert tier.load(KEYS, store.now + 5, BLOCK) == [None] * 10
    assert tier.load_seconds(BLOCK) == pytest.approx(7)


def test_a_store_that_fails_late_is_slow(tier: Tier, store: Crawling) -> None:
    def fail() -> None:
        store.now += 7
        raise TimeoutError("no answer")

    store.before_load = fail
    tier.load(KEYS, store.now + 5, BLOCK)
    assert tier.load_seconds(BLOCK) == pytest.approx(7)
    assert store.now + 1 < 107 + RETRY_SECONDS
    tier.load(KEYS, store.now, BLOCK)  # the store is not asked so soon after a failure, so no rate is measured
    assert tier.load_seconds(BLOCK) == pytest.approx(7)


def test_blocks_that_are_missing_say_nothing(tier: Tier, store: Crawling) -> None:
    store.clear()
    tier.load(KEYS, store.now + 5, BLOCK)
    assert tier.load_seconds(BLOCK) == 0


def test_old_observations_are_outweighed(tier: Tier, store: Crawling) -> None:
    tier.load_rate.observe(BLOCK, 1000, store.now)
    tier.load(KEYS[:1], store.now + 5, BLOCK)
    assert tier.load_seconds(BLOCK) > 500
    store.now += 60
    tier.load(KEYS[:1], store.now + 5, BLOCK)
    assert tier.load_seconds(BLOCK) < 20


def test_waiting_for_a_lookup_is_measured_unless_the_index_is_in_memory(tier: Tier, store: Crawling) -> None:
    tier.lookup(KEYS)
    assert tier.lookup_rate.seconds_per_unit is None
    store.index_in_memory = False
    tier.lookup(KEYS)
    assert tier.lookup_rate.seconds_per_unit == 0


@pytest.mark.parametrize("answer", [[True], [True] * 11, None, 5], ids=str)
def test_an_answer_of_another_length_is_a_miss(answer: Any) -> None:
    class Confused(HostStore):
        def lookup(self, keys: Sequence[bytes]) -> list[bool]:
            return answer  # type: ignore[no-any-return]

    assert Tier("confused", Confused(HostSettings())).lookup(KEYS) == [False] * 10


class Panic(BaseException):
    """A stand-in for the exceptions of a library written in Rust."""


@pytest.mark.parametrize("error", [OSError("the network is gone"), Panic("index out of bounds")])
def test_a_store_that_fails_is_left_alone(tier: Tier, store: Crawling, error: BaseException) -> None:
    def fail() -> None:
        raise error

    store.before_load = fail
    assert tier.load(KEYS, store.now + 5, BLOCK) == [None] * 10
    assert tier.counts.errors == 1
    store.before_load = lambda: None
    assert tier.load(KEYS, store.now + 5, BLOCK) == [None] * 10
    store.now += RETRY_SECONDS
    assert None not in tier.load(KEYS, store.now + 20, BLOCK)
