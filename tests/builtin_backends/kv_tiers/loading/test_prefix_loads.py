"""Loads of prefixes wait for memory, are started if measured rates make them faster, and do not wait for a stuck
store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from sglang_plug import KVBlock, KVStoreError
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.block_layout import BlockLayout
from sglang_plug_backends.kv_tiers.loading.prefix_loads import PrefixLoad, PrefixLoads
from sglang_plug_backends.kv_tiers.loading.prefix_source import MissingPrefix, PrefixSource
from sglang_plug_backends.kv_tiers.state_layout import StateLayout
from sglang_plug_backends.kv_tiers.storage.rates import PrefillRate
from sglang_plug_backends.kv_tiers.storage.tier import TRIAL_SECONDS, Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

LAYOUT = BlockLayout(tokens=4, layers=2, key_bytes=8, value_bytes=8)
KEYS = [bytes([number]) * 32 for number in range(8)]


class Gated(HostStore):
    """A store whose loads wait until a gate is opened."""

    def __init__(self) -> None:
        super().__init__(HostSettings())
        self.gate, self.loads = threading.Event(), 0
        self.store([KVBlock(key, memoryview(bytes(LAYOUT.bytes))) for key in KEYS])

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        self.loads += 1
        self.gate.wait()
        return super().load(keys, deadline)


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Clock:
    """A clock whose time a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Gated:
    return Gated()


@pytest.fixture
def prefill() -> PrefillRate:
    return PrefillRate()


@pytest.fixture
def tier(store: Gated, clock: Clock) -> Tier:
    return Tier("gated", store, clock=clock)


@pytest.fixture
def loads(store: Gated, tier: Tier, prefill: PrefillRate, clock: Clock) -> Iterator[PrefixLoads]:
    options: dict[str, Any] = {"max_bytes": 4 * LAYOUT.bytes, "max_seconds": 60.0, "always": False, "clock": clock}
    source = PrefixSource(Tiers([tier]), LAYOUT, StateLayout.of((), LAYOUT.tokens), torch.device("cpu"))
    yield (prefix_loads := PrefixLoads(source, prefill, promote=lambda blocks: None, **options))
    store.gate.set()
    prefix_loads.close(60)


def submitted(loads: PrefixLoads, keys: Sequence[bytes]) -> PrefixLoad:
    """Submit a load, which must be worthwhile."""
    load = loads.submit(MissingPrefix(keys, 0))
    assert load is not None
    return load


def test_blocks_are_loaded_up_to_the_first_missing_one(loads: PrefixLoads, store: Gated) -> None:
    store.gate.set()
    store.delete([KEYS[2]])
    load = submitted(loads, KEYS[:4])
    until(lambda: load.done)
    assert load.result.tiers == ["gated", "gated"]
    assert [part.shape[0] for part in load.result.rows] == [8] * 4


def test_further_loads_wait_until_loaded_blocks_are_released(loads: PrefixLoads, store: Gated) -> None:
    store.gate.set()
    first = submitted(loads, KEYS[:4])
    until(lambda: first.done)
    second = submitted(loads, KEYS[4:])
    time.sleep(0.05)
    assert second.began is None
    loads.release(first)
    until(lambda: second.done)
    assert len(second.result.tiers) == 4


def test_a_load_that_is_slower_than_computing_is_left_out(
    loads: PrefixLoads, store: Gated, prefill: PrefillRate, clock: Clock
) -> None:
    slow = submitted(loads, KEYS[:2])
    until(lambda: slow.began)
    clock.now += 0.05
    store.gate.set()
    until(lambda: slow.done)
    assert len(slow.result.tiers) == 2
    prefill.seconds_per_token = 1e-6
    assert loads.submit(MissingPrefix(KEYS[2:4], 0)) is None


def test_a_load_is_measured_again_later_without_holding_a_request(
    loads: PrefixLoads, store: Gated, tier: Tier, prefill: PrefillRate, clock: Clock
) -> None:
    tier.load_rate.observe(LAYOUT.bytes, 20.0, clock.now)  # the network was interrupted for a while
    prefill.seconds_per_token = 1.0
    clock.now += TRIAL_SECONDS - 1
    assert loads.submit(MissingPrefix(KEYS[:2], 0)) is None and loads.idle
    clock.now += 1
    assert loads.submit(MissingPrefix(KEYS[:2], 0)) is None and not loads.idle
    until(lambda: store.loads)
    assert loads.submit(MissingPrefix(KEYS[:2], 0)) is None, "the trial is not finished"
    store.gate.set()
    until(lambda: loads.idle)
    assert store.loads == 1, "one trial at a time"
    load = submitted(loads, KEYS[:2])
    until(lambda: load.done)
    assert len(load.result.tiers) == 2


def test_time_in_the_queue_counts(loads: PrefixLoads, prefill: PrefillRate, clock: Clock) -> None:
    prefill.seconds_per_token = 0.5
    active = [submitted(loads, KEYS[:1]) for _ in range(2)]
    until(lambda: all(load.began for load in active))
    queued = submitted(loads, KEYS[:2])  # nothing is known yet about the loads before it
    clock.now += 2.9
    assert not loads.is_late(queued) and not loads.is_late(active[0])
    clock.now += 1.2
    assert loads.is_late(queued) and loads.is_late(active[0])


def test_a_load_behind_many_others_is_left_out(
    loads: PrefixLoads, store: Gated, prefill: PrefillRate, clock: Clock
) -> None:
    first = submitted(loads, KEYS[:1])
    until(lambda: first.began)
    clock.now += 1.0
    store.gate.set()
    until(lambda: first.done and loads.idle)
    loads.release(first)
    store.gate.clear()
    prefill.seconds_per_token = 0.5  # two seconds for a block, which a store returns in one
    accepted = [loads.submit(MissingPrefix(KEYS[:1], 0)) is not None for _ in range(12)]
    assert accepted == [True, True, *accepted[2:]] and 2 <= sum(accepted) <= 4


def test_a_load_that_begins_too_late_does_not_disturb_the_store(
    loads: PrefixLoads, store: Gated, prefill: PrefillRate, clock: Clock
) -> None:
    prefill.seconds_per_token = 0.5
    for load in (active := [submitted(loads, KEYS[:1]) for _ in range(2)]):
        until(lambda load=load: load.began)
    queued = submitted(loads, KEYS[:2])
    clock.now += 5
    store.gate.set()
    until(lambda: all(load.done for load in (queued, *active)))
    assert (queued.result.tiers, store.loads) == ((), 2)


def test_waiting_for_room_does_not_count(loads: PrefixLoads, store: Gated, prefill: PrefillRate, clock: Clock) -> None:
    prefill.seconds_per_token = 0.5
    store.gate.set()
    first = submitted(loads, KEYS[:4])
    until(lambda: first.done)
    second = submitted(loads, KEYS[4:])
    clock.now += 1000  # the scheduler has no room for the first request
    assert not loads.is_late(second)
    loads.release(first)
    until(lambda: second.done)
    assert len(second.result.tiers) == 4


@pytest.mark.parametrize("always", [False, True])
def test_a_request_is_held_no_longer_than_computing_takes_while_memory_is_lacking(
    loads: PrefixLoads, store: Gated, prefill: PrefillRate, clock: Clock, always: bool
) -> None:
    prefill.seconds_per_token = 0.5
    store.gate.set()
    first = submitted(loads, KEYS[:4])
    until(lambda: first.done)
    second = loads.submit(MissingPrefix(KEYS[4:], 0), always=always)
    assert second is not None
    clock.now += 7.9
    assert not loads.lacks_memory(second)
    clock.now += 0.2
    assert loads.lacks_memory(second)
    loads.release(first)
    until(lambda: second.done)
    assert not loads.lacks_memory(second) and len(second.result.tiers) == 4


def test_a_queue_of_slow_loads_does_not_lack_memory(loads: PrefixLoads, prefill: PrefillRate, clock: Clock) -> None:
    prefill.seconds_per_token = 0.5
    active = [submitted(loads, KEYS[:1]) for _ in range(2)]
    until(lambda: all(load.began for load in active))
    queued = loads.submit(MissingPrefix(KEYS[:2], 0), always=True)
    assert queued is not None
    clock.now += 30.0
    assert not loads.lacks_memory(queued) and not loads.is_late(queued)


def test_requests_that_end_meanwhile_keep_no_memory(loads: PrefixLoads, store: Gated) -> None:
    aborted = [submitted(loads, KEYS[:4]) for _ in range(5)]
    until(lambda: sum(load.began is not None for load in aborted) == 2)
    for load in aborted:
        loads.release(load)
    store.gate.set()
    load = submitted(loads, KEYS[4:])
    until(lambda: load.done)
    assert len(load.result.tiers) == 4


def test_a_stuck_store_is_not_used(loads: PrefixLoads, store: Gated, clock: Clock) -> None:
    stuck = [submitted(loads, KEYS[:2]) for _ in range(2)]
    until(lambda: all(load.began for load in stuck))
    assert loads.usable and not loads.is_late(stuck[0])
    clock.now += 100
    assert loads.is_late(stuck[0]) and not loads.usable
    store.gate.set()
    until(lambda: loads.usable)


def test_the_end_waits_for_loads_that_are_under_way(loads: PrefixLoads, store: Gated) -> None:
    load, closed = submitted(loads, KEYS[:2]), threading.Event()
    until(lambda: store.loads)

    def close() -> None:
        loads.close(60)
        closed.set()

    threading.Thread(target=close).start()
    assert not closed.wait(0.1) and not load.done
    store.gate.set()
    assert closed.wait(60) and load.done


def test_the_end_does_not_wait_for_a_stuck_store(loads: PrefixLoads, store: Gated) -> None:
    load = submitted(loads, KEYS[:2])
    until(lambda: store.loads)
    loads.close(0.01)
    assert not load.done
