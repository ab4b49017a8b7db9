from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from sglang_plug.engine.memory.kv_slots import SlotPool


def test_pages_are_aligned_and_page_zero_is_spare() -> None:
    pool = SlotPool(capacity=10, page_size=4)
    assert (pool.capacity, pool.rows, pool.free) == (8, 12, 8)
    slots = array("q")
    pool.extend(slots, 5)
    assert slots[0] % 4 == 0 and slots[4] % 4 == 0
    assert min(slots) >= 4
    assert pool.free == 0


@given(st.integers(1, 5), st.lists(st.integers(1, 13), max_size=12))
def test_slots_are_never_lost_nor_given_twice(page_size: int, lengths: list[int]) -> None:
    pool = SlotPool(capacity=60, page_size=page_size)
    held: list[array[int]] = []
    for length in lengths:
        slots = array("q")
        grown = 0
        while grown < length and pool.missing(grown, grown + 1) <= pool.free:
            grown += 1
            pool.extend(slots, grown)
        held.append(slots)
        if len(held) > 3:
            pool.release(held.pop(0))
    used = [slot for slots in held for slot in slots]
    assert len(used) == len(set(used))
    assert not set(used) & set(pool.free_slots())
    assert pool.free + sum(pool.missing(0, len(slots)) for slots in held) == pool.capacity
    for slots in held:
        pool.release(slots)
    assert sorted(pool.free_slots()) == list(range(page_size, pool.rows))


@given(st.integers(1, 5), st.integers(0, 20), st.integers(0, 20))
def test_what_is_shrunk_gives_whole_pages_back_and_grows_again(page_size: int, length: int, kept: int) -> None:
    pool, slots = SlotPool(capacity=60, page_size=page_size), array("q")
    pool.extend(slots, length)
    before, free = list(slots), pool.free
    kept = min(kept, length)
    spared = pool.shrink(slots, kept)
    assert list(slots) == before[:kept]
    assert pool.free - free == pool.missing(kept, length)
    assert spared == (pool.free > free)
    pool.extend(slots, length)
    assert len(set(slots)) == length and pool.free == free
    assert [slot % page_size for slot in slots] == [slot % page_size for slot in before]
