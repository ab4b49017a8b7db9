"""Loads wait for memory, are decided by measured rates, and do not wait for a stuck store."""

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
from sglang_plug_backends.kv_tiers.prefix_loads import PrefixLoad, PrefixLoads
from sglang_plug_backends.kv_tiers.rates import PrefillRate
from sglang_plug_backends.kv_tiers.tier import Tier
from sglang_plug_backends.kv_tiers.tiers import Tiers

LAYOUT = BlockLayout(tokens=4, layers=2, key_bytes=8, value_bytes=8)
KEYS = [bytes([number]) * 32 for number in range(8)]


class Gated(HostStore):
    """A store whose loads wait until a gate is opened."""

    def __init__(self) -> None:
        super().__init__(HostSettings())
        self.gate = threading.Event()
        self.store([KVBlock(key, memoryview(bytes(LAYOUT.bytes))) for key in KEYS])

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        self.gate.wait()
        return super().load(keys, deadline)


def until(holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.fixture
def store() -> Gated:
    return Gated()


@pytest.fixture
def prefill() -> PrefillRate:
    return PrefillRate()


@pytest.fixture
def loads(store: Gated, prefill: PrefillRate) -> Iterator[PrefixLoads]:
    tiers = Tiers([Tier("gated", store, LAYOUT.bytes)])
    options: dict[str, Any] = {"most_bytes": 4 * LAYOUT.bytes, "most_seconds": 60.0, "always": False}
    yield (made := PrefixLoads(tiers, LAYOUT, torch.device("cpu"), prefill, promote=lambda blocks: None, **options))
    store.gate.set()
    made.close()


def test_blocks_are_loaded_up_to_the_first_missing_one(loads: PrefixLoads, store: Gated) -> None:
    store.gate.set()
    store.delete([KEYS[2]])
    load = loads.submit(KEYS[:4], 0)
    until(lambda: load.done)
    assert load.tiers == ["gated", "gated"]
    assert [part.shape[0] for part in load.rows] == [8] * 4


def test_further_loads_wait_until_loaded_blocks_are_released(loads: PrefixLoads, store: Gated) -> None:
    store.gate.set()
    first = loads.submit(KEYS[:4], 0)
    until(lambda: first.done)
    second = loads.submit(KEYS[4:], 0)
    time.sleep(0.05)
    assert second.began is None
    loads.release(first)
    until(lambda: second.done)
    assert len(second.tiers) == 4


def test_a_load_that_is_slower_than_computing_is_left_out(
    loads: PrefixLoads, store: Gated, prefill: PrefillRate
) -> None:
    slow = loads.submit(KEYS[:2], 0)
    until(lambda: slow.began)
    time.sleep(0.05)
    store.gate.set()
    until(lambda: slow.done)
    prefill.seconds_per_token = 1e-6
    load = loads.submit(KEYS[2:4], 0)
    until(lambda: load.done)
    assert (len(slow.tiers), load.tiers) == (2, [])


def test_requests_that_end_meanwhile_keep_no_memory(loads: PrefixLoads, store: Gated) -> None:
    aborted = [loads.submit(KEYS[:4], 0) for _ in range(5)]
    until(lambda: sum(load.began is not None for load in aborted) == 2)
    for load in aborted:
        loads.release(load)
    store.gate.set()
    load = loads.submit(KEYS[4:], 0)
    until(lambda: load.done)
    assert len(load.tiers) == 4


def test_a_stuck_store_is_not_used(loads: PrefixLoads, store: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = [loads.submit(KEYS[:2], 0) for _ in range(2)]
    until(lambda: all(load.began for load in stuck))
    assert loads.usable and not stuck[0].is_late
    for load in stuck:
        load.began = time.monotonic() - 100
    assert stuck[0].is_late and not loads.usable
    store.gate.set()
    until(lambda: loads.usable)


def test_a_load_that_waits_is_not_late() -> None:
    assert not PrefixLoad(KEYS, 0, 0.0, None).is_late
