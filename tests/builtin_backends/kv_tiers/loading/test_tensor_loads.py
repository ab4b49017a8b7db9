"""The end of the thread that loads tensors for other extensions."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from sglang_plug import KVBlock, KVStoreError
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.loading.tensor_loads import TensorLoads, encode
from sglang_plug_backends.kv_tiers.storage.rates import PrefillRate
from sglang_plug_backends.kv_tiers.storage.tier import Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

KEY = bytes(KVBlock.KEY_BYTES)


class Gated(HostStore):
    """A store of one tensor, whose loads wait until a gate is opened."""

    verifies = True

    def __init__(self) -> None:
        super().__init__(HostSettings())
        self.gate, self.begun = threading.Event(), threading.Event()
        self.store([KVBlock(KEY, encode([torch.arange(3)])[0])])

    def load(self, keys: Sequence[bytes], deadline: float) -> list[memoryview | KVStoreError]:
        self.begun.set()
        self.gate.wait(60)
        return super().load(keys, deadline)


@pytest.fixture
def store() -> Gated:
    return Gated()


@pytest.fixture
def loads(store: Gated) -> TensorLoads:
    tiers, device = Tiers([Tier("gated", store)]), torch.device("cpu")
    return TensorLoads(tiers, device, PrefillRate(), max_seconds=60, always=False, promote=lambda blocks: None)


def test_the_end_waits_for_the_load_that_is_under_way(loads: TensorLoads, store: Gated) -> None:
    load, closed = loads.submit(KEY, 100), threading.Event()
    assert load is not None and store.begun.wait(60)

    def close() -> None:
        loads.close(60)
        closed.set()

    threading.Thread(target=close).start()
    assert not closed.wait(0.1) and not load.finished
    store.gate.set()
    assert closed.wait(60) and load.value is not None and load.value.tolist() == [0, 1, 2]


def test_the_end_does_not_wait_for_a_stuck_store(loads: TensorLoads, store: Gated) -> None:
    load = loads.submit(KEY, 100)
    assert load is not None and store.begun.wait(60)
    loads.close(0.01)
    assert not load.finished
    store.gate.set()
