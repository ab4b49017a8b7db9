"""The queue of blocks that are waiting to be stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from sglang_plug import AsyncHostCopy, KVBlock
from sglang_plug_backends.kv_stores.host import HostStore
from sglang_plug_backends.kv_stores.settings import HostSettings
from sglang_plug_backends.kv_tiers.prefix_stores import PrefixStores
from sglang_plug_backends.kv_tiers.storage.tier import Tier
from sglang_plug_backends.kv_tiers.storage.tiers import Tiers

KEY = bytes(32)


@pytest.fixture
def stores() -> Iterator[PrefixStores]:
    result = PrefixStores(Tiers([Tier("host", HostStore(HostSettings()))]), 1000)
    yield result
    result.close(60)


def waiting(stores: PrefixStores) -> Callable[[], None]:
    """Block the storing thread until the returned function is called."""
    begun, go = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go.wait(60)

    stores.then(wait)
    assert begun.wait(60)
    return go.set


def test_needed_calls_outlive_a_clearing(stores: PrefixStores) -> None:
    """Another engine waits for the message that a transfer is complete, so clearing the queue must not drop it."""
    go, called = waiting(stores), list[str]()

    def encode(tensors: Sequence[torch.Tensor]) -> list[memoryview]:
        called.append("stored")
        return [memoryview(bytes(4))]

    stores.put([KEY], AsyncHostCopy.of(torch.zeros(4)), encode, 4)
    stores.then(lambda: called.append("parts are sent"), 600)
    stores.then(lambda: called.append("complete"), needed=True)
    clearing = list[bool]()
    thread = threading.Thread(target=lambda: clearing.append(stores.clear(60)))
    thread.start()
    while stores.queued_blocks:
        time.sleep(0.001)
    go()
    thread.join(60)
    assert (clearing, called) == ([True], ["complete"])
    stores.promote([KVBlock(KEY, memoryview(bytes(900)))])
    assert stores.wait(60) and stores.blocks_to_store([KEY], 900) == []
