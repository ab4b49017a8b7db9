"""The queue as step extensions see it."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

from sglang_plug import Request
from sglang_plug.engine.admission.open_requests import SchedulerQueueView
from sglang_plug.engine.memory.kv_slots import SlotPool
from sglang_plug.engine.scheduling.checked_policy import CheckedPolicy
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug.testing.scheduler_parts import build_scheduler
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.radix import RadixCache
from sglang_plug_backends.schedule.policies import LongestPrefix


class CountingCache(RadixCache):
    """Counts how often a prefix is looked up."""

    lookups = 0

    def find(self, keys: Ordered[int], *arguments: Any) -> Any:
        self.lookups += 1
        return super().find(keys, *arguments)


def test_arrivals_between_two_steps_look_up_each_prefix_once() -> None:
    cache = CountingCache(1, LeastRecentlyUsed(), lambda: 0.0)
    policy = CheckedPolicy(LongestPrefix(), "longest prefix first")
    scheduler = build_scheduler(SlotPool(64, 1), cache, policy, chunk_size=32, max_running=2)
    queue = SchedulerQueueView(scheduler)
    for number in range(40):
        arriving = Sequence.of(Request(id=str(number), tokens=(number, 1, 2), arrived=float(number)), 9)
        scheduler.add(arriving)
        assert len(list(queue.ahead_of(arriving))) == number
    assert cache.lookups == 40
    queue.forget_matches()
    assert len(list(queue.ahead_of(arriving))) == 39 and cache.lookups == 80
