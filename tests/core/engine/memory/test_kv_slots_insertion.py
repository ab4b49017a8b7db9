"""Keys and values from other sources than a step, such as a KV store, are inserted into the prefix cache."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence as Ordered

import pytest

from sglang_plug import CachePhase, PrefixCache, Request, SequenceView, StepExtension
from sglang_plug.engine.extensions.points import extension_points
from sglang_plug.engine.extensions.server_points import CachePoints
from sglang_plug.engine.memory.kv_slots import KVAllocator, SlotPool
from sglang_plug.engine.sequences.sequence import Sequence
from sglang_plug_backends.eviction.policies import LeastRecentlyUsed
from sglang_plug_backends.prefix_cache.none import NoCache
from sglang_plug_backends.prefix_cache.radix import RadixCache


def allocator(slots: int = 32, page_size: int = 4, cache: type[PrefixCache] = RadixCache) -> KVAllocator:
    return KVAllocator(
        SlotPool(slots, page_size), cache(page_size, LeastRecentlyUsed(), time.monotonic), CachePoints(), "the cache"
    )


def sequence(length: int, first: int = 0) -> Sequence:
    return Sequence.of(Request(id="one", tokens=tuple(range(first, first + length))), 1000)


class Writer:
    """A write function that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, start: int, slots: array[int]) -> None:
        self.calls.append((start, len(slots)))


def check(kv: KVAllocator) -> None:
    kv.check([])
    kv.cache.check()


def test_whole_pages_are_inserted_and_matched() -> None:
    kv, write, seq = allocator(), Writer(), sequence(19)
    assert kv.insert(seq, 11, write) == 8
    assert kv.insert(seq, 16, write) == 16
    assert kv.insert(seq, 16, write) == 16
    assert write.calls == [(0, 8), (8, 8)]
    assert len(kv.match(seq).slots) == 16
    check(kv)


def test_the_last_token_is_always_computed() -> None:
    kv, write = allocator(), Writer()
    assert kv.insert(sequence(16), 16, write) == 12
    check(kv)


def test_other_prefixes_make_room_but_not_the_own_one() -> None:
    kv, write = allocator(), Writer()
    seq, other = sequence(20), sequence(21, 100)
    assert kv.insert(seq, 8, write) == 8
    assert kv.insert(other, 20, write) == 20
    assert kv.insert(seq, 16, write) == 16
    assert write.calls[-1] == (8, 8)
    check(kv)


def test_nothing_is_inserted_without_room_for_the_whole_sequence() -> None:
    kv, write = allocator(), Writer()
    running = sequence(20, 100)
    assert kv.allocate(running, kv.match(running), 0)
    assert kv.insert(sequence(13), 8, write) == 0 and write.calls == []
    assert kv.insert(sequence(12), 8, write) == 8
    kv.release(running)
    check(kv)


def test_a_failed_write_frees_its_slots() -> None:
    kv, seq = allocator(), sequence(20)
    assert kv.insert(seq, 4, Writer()) == 4

    def fails(start: int, slots: array[int]) -> None:
        raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        kv.insert(seq, 16, fails)
    assert len(kv.match(seq).slots) == 4
    assert kv.pool.free == 28
    check(kv)


def test_a_cache_that_stores_nothing_keeps_no_slots() -> None:
    kv = allocator(cache=NoCache)
    assert kv.insert(sequence(20), 16, Writer()) == 0
    assert kv.pool.free == 32


class CacheRecorder(StepExtension, CachePhase):
    """A step extension that records which slots hold cached tokens."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        self.restored: list[tuple[str, int]] = []

    def prefix_cached(self, sequence: SequenceView, length: int) -> None:
        self.slots.update(sequence.slots[:length])

    def prefix_restored(self, sequence: SequenceView, slots: Ordered[int]) -> None:
        self.restored.append((sequence.request.id, len(slots)))
        self.slots.update(slots)

    def evicted(self, slots: Ordered[int]) -> None:
        self.slots.difference_update(slots)

    def reset(self) -> None:
        self.slots.clear()


def test_an_extension_can_follow_what_is_cached() -> None:
    recorder = CacheRecorder()
    points = extension_points({"recorder": recorder})
    kv = KVAllocator(SlotPool(32, 4), RadixCache(4, LeastRecentlyUsed(), time.monotonic), points.cache, "the cache")

    def compare() -> None:
        assert len(recorder.slots) == kv.cache.size

    kv.insert(sequence(20), 8, Writer())
    compare()
    kv.insert(sequence(20), 16, Writer())
    assert recorder.restored == [("one", 8), ("one", 16)]
    compare()
    running = sequence(27, 100)
    assert kv.allocate(running, kv.match(running), 0)  # evicts a part of the cached prefix
    compare()
    running.computed = 24
    kv.committed(running, prefilling=True)
    compare()
    kv.release(running)
    assert kv.evict(4) == 24
    compare()
    kv.insert(sequence(20), 16, Writer())
    kv.flush()
    compare()
    assert not recorder.slots


class FailsToForget(StepExtension, CachePhase):
    """A step extension that raises an error in one method."""

    def __init__(self, method: str) -> None:
        self._method = method

    def reset(self) -> None:
        if self._method == "reset":
            raise KeyError("a fault in reset")

    def forget_stored(self) -> None:
        if self._method == "forget_stored":
            raise KeyError("a fault in forget_stored")


class Forgets(StepExtension, CachePhase):
    """A step extension that records its calls."""

    def __init__(self) -> None:
        self.calls = list[str]()

    def reset(self) -> None:
        self.calls.append("reset")

    def forget_stored(self) -> None:
        self.calls.append("forget_stored")


@pytest.mark.parametrize("method", ["reset", "forget_stored"])
def test_all_extensions_forget_prefixes_although_one_fails(method: str) -> None:
    """If an extension kept its prefixes, they could be used with the new weights."""
    other = Forgets()
    points = extension_points({"faulty": FailsToForget(method), "other": other})
    kv = KVAllocator(SlotPool(32, 4), RadixCache(4, LeastRecentlyUsed(), time.monotonic), points.cache, "the cache")
    with pytest.raises(KeyError, match=f"a fault in {method}"):
        kv.flush()
    assert other.calls == ["reset", "forget_stored"]
