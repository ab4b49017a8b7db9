"""When the host runs out of memory, cached prefixes are evicted and their pages freed; running sequences keep
theirs."""

from __future__ import annotations

import logging
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from sglang_plug import HostMemory, KVPool
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.extensions.server_points import CachePoints
from sglang_plug.engine.memory.kv_slots import KVAllocator, SlotPool
from sglang_plug.engine.memory.prefix_pool import EnginePrefixPool, Run
from sglang_plug.engine.messages.api_messages import Control, Reply, StepOutputs
from sglang_plug.testing import check_step_extension
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.memory_relief.relief import (
    COMFORTABLE,
    CRITICAL_SHARE,
    PERIOD,
    MemoryRelief,
    MemoryReliefOff,
    Relief,
    build,
)
from sglang_plug_backends.prefix_cache.radix import RadixCache
from tests.core.engine.test_loop import Bench as LoopBench

TOTAL = 1_000_000
CRITICAL, PLENTY = int(TOTAL * CRITICAL_SHARE) - 1, TOTAL // 2
SLOT_BYTES = 2 * 2 * 8 * 4 * 2
"""Bytes of a slot: keys and values of two layers, two heads of eight numbers, in float32."""


class Bench:
    """A pool with cached prefixes, on a host whose free memory the test sets."""

    def __init__(self, slots: int = 4000) -> None:
        self.now, self.memory = 100.0, HostMemory(PLENTY, TOTAL)
        self.pool = SlotPool(slots, 1)
        self.cache = RadixCache(1, LeastRecentlyUsed(), lambda: self.now)
        self.allocator = KVAllocator(self.pool, self.cache, CachePoints(), "the cache")
        self.kv = KVPool(
            layers=2,
            slots=self.pool.rows,
            kv_heads=2,
            dim=8,
            value_dim=8,
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
        self.evictions: list[list[Run]] = []
        self.reads = 0
        prefixes = prefix_pool(self.allocator, self.kv, lambda runs: self.evictions.append(list(runs)))
        self.relief = Relief(prefixes, self.read, lambda: self.now)

    def read(self) -> HostMemory:
        self.reads += 1
        return self.memory

    def remember(self, first: int, count: int) -> list[int]:
        """Cache a prefix that begins with token ``first``, and return its slots; each is used a second after the
        previous one."""
        self.now += 1
        slots = array("q")
        self.pool.extend(slots, count)
        self.cache.insert(list(range(first, first + count)), slots)
        return list(slots)

    def check_memory(self) -> int:
        self.now += PERIOD
        before = self.relief.done.evicted_tokens
        self.relief.check_memory()
        return self.relief.done.evicted_tokens - before


def prefix_pool(allocator: KVAllocator, kv: KVPool, return_memory: Any = lambda runs: None) -> EnginePrefixPool:
    return EnginePrefixPool(allocator, kv, (), cast(Any, None), return_memory)


def test_nothing_happens_while_there_is_enough() -> None:
    bench = Bench()
    bench.remember(10, 500)
    assert bench.check_memory() == 0 and bench.cache.size == 500 and bench.relief.done.episodes == 0


def test_it_looks_now_and_then() -> None:
    bench = Bench()
    bench.remember(10, 500)
    bench.check_memory()
    for _ in range(100):
        bench.relief.check_memory()
    assert bench.reads == 1


def test_an_engine_that_never_had_a_request_may_sleep() -> None:
    bench = Bench()
    assert not bench.relief.is_needed
    assert bench.check_memory() == 0 and bench.reads == 0
    bench.remember(10, 1)
    assert bench.relief.is_needed


def test_as_much_as_is_missing_is_forgotten_and_the_oldest_first() -> None:
    bench = Bench()
    old, young = bench.remember(1000, 300), bench.remember(5000, 1000)
    bench.memory = HostMemory(CRITICAL, TOTAL)
    evicted = bench.check_memory()
    missing = COMFORTABLE * TOTAL * CRITICAL_SHARE - CRITICAL
    assert evicted * SLOT_BYTES >= missing
    assert len(bench.cache.match(range(1000, 1300)).slots) == 0
    assert old and young and bench.pool.free + bench.cache.size == bench.pool.capacity
    assert bench.relief.done.evicted_tokens == evicted
    bench.cache.check()


def test_what_runs_stays() -> None:
    bench = Bench()
    bench.remember(10, 3000)
    bench.cache.lock(bench.cache.match(range(10, 3010)))
    bench.memory = HostMemory(0, TOTAL)
    assert bench.check_memory() == 0 and bench.cache.size == 3000


def test_all_prefixes_go_while_memory_stays_critical(caplog: pytest.LogCaptureFixture) -> None:
    """All prefixes are evicted, even if another process takes the memory; the log has one line for the episode."""
    bench = Bench()
    for first in range(1000, 40_000, 1000):
        bench.remember(first, 90)
    bench.memory = HostMemory(0, TOTAL)
    with caplog.at_level(logging.WARNING):
        while bench.check_memory():
            pass
        assert bench.cache.size == 0 and bench.relief.done.episodes == 1
        assert len(caplog.records) == 1 and "Host memory is low" in caplog.text
        bench.memory = HostMemory(PLENTY, TOTAL)
        bench.check_memory()
        bench.memory = HostMemory(0, TOTAL)
        bench.check_memory()
    assert bench.relief.done.episodes == 2 and len(caplog.records) == 2


def test_an_episode_lasts_until_enough_is_available() -> None:
    bench = Bench()
    bench.remember(10, 100)
    for available in (CRITICAL, CRITICAL + 10_000, CRITICAL):
        bench.memory = HostMemory(available, TOTAL)
        bench.check_memory()
    assert bench.relief.done.episodes == 1


def test_stalls_count_where_little_is_left() -> None:
    bench = Bench()
    bench.remember(10, 2000)
    calm = HostMemory(2 * CRITICAL, TOTAL, stalled=1.0)
    for memory in (calm, HostMemory(PLENTY, TOTAL, stalled=90.0)):
        bench.memory = memory
        assert bench.check_memory() == 0
    bench.memory = replace(calm, stalled=30.0)
    assert bench.check_memory() > 0


def test_an_idle_engine_forgets_and_tells() -> None:
    now, memory, extension = [100.0], [HostMemory(PLENTY, TOTAL)], MemoryRelief()
    served = LoopBench(extensions={"memory-relief": extension})
    kv = KVPool(layers=1, slots=65, kv_heads=1, dim=2, value_dim=2, dtype=torch.float32, device=torch.device("cpu"))
    extension.relief = Relief(prefix_pool(served.scheduler.allocator, kv), lambda: memory[0], lambda: now[0])
    assert served.loop.extensions.service.shortest_idle_timeout() is None
    served.submit("a", range(1, 20))
    served.run()
    cached = served.scheduler.cache.size
    assert cached >= 19
    assert served.loop.extensions.service.shortest_idle_timeout() == PERIOD
    memory[0], now[0] = HostMemory(0, TOTAL), now[0] + PERIOD
    served.loop.step()
    updates = [message for message in served.sent if isinstance(message, StepOutputs)][-1]
    assert updates.stats is not None
    assert (updates.stats.cached_slots, updates.stats.free_slots) == (0, 64)
    assert ("memory_relieved_tokens_total", cached) in {(total.name, total.value) for total in updates.stats.counters}
    served.inbox.messages.append(Control(7, "info", {}))
    served.loop.step()
    reply = next(message for message in served.sent if isinstance(message, Reply))
    assert reply.value["memory_relief"] == {"episodes": 1, "evicted_tokens": cached}


def test_unused_runs_are_told_and_the_lowest_slots_come_first() -> None:
    bench = Bench()
    bench.remember(10, 1000)
    bench.remember(3000, 7)
    bench.memory = HostMemory(0, TOTAL)
    while bench.check_memory():
        pass
    assert bench.evictions[-1] == [(1, 1008)]
    slots = array("q")
    bench.pool.extend(slots, 5)
    assert list(slots) == [1, 2, 3, 4, 5]


def test_only_a_pool_on_the_host_is_watched() -> None:
    bench, extension = Bench(), MemoryRelief()
    extension.between_steps()
    assert extension.info() == {"memory_relief": None} and extension.idle_timeout() is None
    elsewhere = KVPool(layers=1, slots=9, kv_heads=1, dim=2, value_dim=2, dtype=torch.half, device=torch.device("meta"))
    extension.use_prefixes(prefix_pool(bench.allocator, elsewhere))
    assert extension.relief is None
    extension.use_prefixes(prefix_pool(bench.allocator, bench.kv))
    assert extension.info() == {"memory_relief": {"episodes": 0, "evicted_tokens": 0}}


def test_on_an_accelerator_nothing_is_done_between_steps_and_the_same_is_reported() -> None:
    extension = build(cast(Any, SimpleNamespace(device=torch.device("cuda"))))
    points = extension_points({"memory-relief": extension})
    assert not points.service.between_steps and not points.service.idle_timeout and not points.start.use_prefixes
    context = cast(Any, SimpleNamespace(device=torch.device("cpu")))
    on_the_host = extension_points({"memory-relief": build(context)}).service
    assert on_the_host.between_steps and points.service.all_info() == on_the_host.all_info() == {"memory_relief": None}
    assert [[*counters()] for counters in points.service.counters] == [
        [*counters()] for counters in on_the_host.counters
    ]


@pytest.mark.parametrize("extension", [MemoryRelief(), MemoryReliefOff()])
def test_conformance(extension: MemoryRelief | MemoryReliefOff) -> None:
    check_step_extension(extension)
