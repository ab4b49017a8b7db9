from __future__ import annotations

import gc
import itertools
import tracemalloc
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from sglang_plug import EvictionPolicy, Match, NodeStats
from sglang_plug_backends.eviction.policies import (
    FirstInFirstOut,
    LeastFrequentlyUsed,
    LeastRecentlyUsed,
    LowestPriority,
)
from sglang_plug_backends.prefix_cache.radix import RadixCache, common_length


def ticking() -> Callable[[], float]:
    """Return a clock that advances by one second with each call."""
    return map(float, itertools.count()).__next__


def radix(page_size: int = 1, policy: EvictionPolicy | None = None) -> RadixCache:
    return RadixCache(page_size, policy or LeastRecentlyUsed(), ticking())


def slots_of(match: Match) -> list[int]:
    return list(match.slots)


def test_longest_prefix_is_found() -> None:
    cache = radix()
    cache.insert([1, 2, 3, 4], [11, 12, 13, 14])
    assert slots_of(cache.match([1, 2, 3, 4, 5])) == [11, 12, 13, 14]
    assert slots_of(cache.match([1, 2, 9])) == [11, 12]
    assert slots_of(cache.match([2, 2])) == []
    assert slots_of(cache.match([])) == []
    cache.check()


def test_the_outline_shows_which_runs_continue_which() -> None:
    cache = radix()
    cache.insert([1, 2, 3, 4], [11, 12, 13, 14])
    cache.insert([1, 2, 9], [11, 12, 19])
    cache.insert([5], [15], salt="tenant")
    cache.lock(cache.match([1, 2, 9]))
    runs = cache.outline(10)
    assert sorted(run.tokens for run in runs) == [1, 1, 2, 2]
    (shared,) = (index for index, run in enumerate(runs) if run.children)
    assert (runs[shared].tokens, runs[shared].children, runs[shared].locked) == (2, 2, True)
    assert sorted((run.tokens, run.locked) for run in runs if run.parent == shared) == [(1, True), (2, False)]


def test_the_outline_of_a_large_cache_shows_what_was_used_last_and_looks_at_a_part_only() -> None:
    cache = radix()
    cache.insert([0], [0])
    for number in range(1, 5000):
        cache.insert([number, 1, 2], [number * 3, number * 3 + 1, number * 3 + 2])
    cache.match([0])
    runs = cache.outline(50)
    assert len(runs) == 50
    assert (runs[0].tokens, runs[0].hits) == (1, 1), "the one used last is first, although it is the oldest"
    assert cache.outline(0) == []


def test_looking_a_prefix_up_for_a_waiting_request_is_a_use_and_no_hit() -> None:
    now = [1.0]
    cache = RadixCache(1, LeastRecentlyUsed(), lambda: now[0])
    cache.insert([1, 2, 3], [4, 5, 6])
    now[0] = 3.0
    assert list(cache.find([1, 2, 3, 9]).slots) == [4, 5, 6]
    now[0] = 4.0
    (run,) = cache.outline(9)
    assert (run.hits, run.idle) == (0, 1.0)
    cache.match([1, 2, 3])
    assert [run.hits for run in cache.outline(9)] == [1]


@pytest.mark.parametrize("kind", [list, tuple, lambda tokens: array("q", tokens), lambda tokens: array("i", tokens)])
def test_tokens_come_in_any_sequence(kind: Callable[[list[int]], Sequence[int]]) -> None:
    cache = radix(2)
    cache.insert(kind([1, 2, 3, 4]), kind([2, 3, 4, 5]))
    assert slots_of(cache.match(kind([1, 2, 3, 4, 5]))) == [2, 3, 4, 5]
    assert slots_of(cache.match([1, 2, 3, 9])) == [2, 3]


def test_only_whole_pages_are_shared() -> None:
    cache = radix(4)
    cache.insert(range(8), range(4, 12))
    assert slots_of(cache.match([0, 1, 2, 3, 4, 5, 6])) == [4, 5, 6, 7]
    assert slots_of(cache.match([0, 1, 2])) == []
    assert slots_of(cache.match([0, 1, 2, 9, 4, 5, 6, 7])) == []


@pytest.mark.parametrize(("tokens", "slots"), [(5, 5), (4, 8), (8, 4)])
def test_broken_pages_are_refused(tokens: int, slots: int) -> None:
    with pytest.raises(ValueError, match="whole pages of 4"):
        radix(4).insert(range(tokens), range(slots))


def test_salts_share_nothing() -> None:
    cache = radix()
    cache.insert([1, 2], [11, 12], salt="a")
    assert slots_of(cache.match([1, 2], salt="b")) == []
    cache.insert([1, 2], [21, 22], salt="b")
    assert slots_of(cache.match([1, 2], salt="a")) == [11, 12]
    assert cache.size == 4


def memory_of(use: Callable[[str], None], salts: int) -> int:
    """Return the bytes that remain allocated after ``salts`` were used."""
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(salts):
            use(str(number))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_unknown_salts_take_no_memory() -> None:
    cache = radix()

    def look_up(salt: str) -> None:
        cache.lock(cache.match([1], salt=salt))
        cache.insert([], [], salt=salt)

    def insert_and_evict(salt: str) -> None:
        cache.insert([1], [1], salt=salt)
        cache.evict(1)

    for use in (look_up, insert_and_evict):
        use("first")
        assert memory_of(use, salts=50) < 2000, "less than 40 bytes each"


def test_duplicates_stay_the_callers() -> None:
    cache = radix()
    cache.insert([1, 2, 3], [11, 12, 13])
    result = cache.insert([1, 2, 9], [21, 22, 23])
    assert slots_of(result) == [11, 12, 23]
    assert cache.size == 4
    assert slots_of(cache.insert([1, 2], [31, 32])) == [11, 12]
    assert cache.size == 4


def test_equal_ends_are_equal() -> None:
    cache = radix()
    end = cache.insert([1, 2, 3, 4], [1, 2, 3, 4]).node
    assert cache.match([1, 2, 3, 4, 5]).node == end
    middle = cache.match([1, 2, 7]).node
    assert middle != end
    assert cache.match([1, 2, 8]).node == middle
    assert cache.match([7]).node == cache.match([8]).node
    assert cache.match([7], salt="a").node != cache.match([7], salt="b").node


def test_receipts_outlive_splits() -> None:
    cache = radix()
    before = cache.insert(range(6), range(11, 17))
    cache.lock(before)
    after = cache.insert([0, 1, 9], [31, 32, 33])
    assert (cache.size, cache.evictable) == (7, 1)
    again = cache.match([0, 1, 2, 3, 8])
    cache.lock(again)
    cache.unlock(before)
    assert (cache.evictable, slots_of(again)) == (3, [11, 12, 13, 14])
    cache.check()
    cache.unlock(again)
    cache.lock(before)
    cache.match([0, 7])
    cache.check()
    assert sorted(cache.evict(100)) == [33]
    cache.unlock(before)
    assert cache.evictable == cache.size == 6
    with pytest.raises(RuntimeError, match="evicted after it was matched"):
        cache.lock(after)


def test_locks_are_counted() -> None:
    cache = radix()
    result = cache.insert([1, 2], [1, 2])
    cache.lock(result)
    cache.lock(result)
    cache.unlock(result)
    assert cache.evict(2) == []
    cache.unlock(result)
    with pytest.raises(RuntimeError, match="unlocked more often"):
        cache.unlock(result)
    assert cache.evict(2) == [1, 2]
    cache.check()


def test_eviction_takes_leaves_first_and_stops_when_it_has_enough() -> None:
    cache = radix()
    cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([1, 2, 4, 5], [1, 2, 14, 15])
    assert cache.evict(1) == [3]
    assert cache.evict(3) == [14, 15, 1, 2]
    assert (cache.size, cache.evictable, cache.evict(1)) == (0, 0, [])
    assert cache.evict(0) == []


def fill(cache: RadixCache) -> None:
    """Insert three prefixes, 1, 2 and 3, that differ in age, use, number of uses and priority."""
    cache.insert([1], [1], priority=2)
    cache.insert([2], [2], priority=1)
    cache.insert([3], [3], priority=3)
    for token in (3, 3, 1, 1, 1, 2, 2, 2, 2):
        cache.match([token])


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (LeastRecentlyUsed(), [3, 1, 2]),
        (LeastFrequentlyUsed(), [3, 1, 2]),
        (FirstInFirstOut(), [1, 2, 3]),
        (LowestPriority(), [2, 1, 3]),
    ],
)
def test_policies_decide_who_goes_first(policy: EvictionPolicy, order: list[int]) -> None:
    cache = radix(policy=policy)
    fill(cache)
    assert [slot for _ in range(3) for slot in cache.evict(1)] == order


def test_policies_see_what_happened_to_a_run() -> None:
    nodes: list[NodeStats] = []

    class Watcher:
        def eviction_priority(self, node: NodeStats) -> float:
            nodes.append(node)
            return node.depth

    now = [0.0]
    cache = RadixCache(1, Watcher(), lambda: now[0])
    cache.insert([1, 2, 3], [1, 2, 3], priority=1)
    now[0] = 5.0
    cache.match([1, 2, 3], priority=4)
    now[0] = 7.0
    cache.insert([1, 2, 8], [1, 2, 18])
    cache.evict(4)
    by_end = {(node.depth, node.tokens): node for node in nodes}
    assert by_end[2, 2] == NodeStats(tokens=2, depth=2, created=0.0, used=7.0, hits=1, priority=4)
    old, new = (node for node in nodes if node.tokens == 1)
    assert old == NodeStats(tokens=1, depth=3, created=0.0, used=5.0, hits=1, priority=4)
    assert new == NodeStats(tokens=1, depth=3, created=7.0, used=7.0, hits=0, priority=0)


def test_reset_gives_everything_back_unless_it_is_in_use() -> None:
    cache = radix()
    result = cache.insert([1, 2, 3], [1, 2, 3])
    cache.insert([1, 9], [1, 19], salt="")
    cache.insert([1], [41], salt="x")
    cache.lock(result)
    with pytest.raises(RuntimeError, match="3 cached slots are in use"):
        cache.reset()
    cache.unlock(result)
    assert sorted(cache.reset()) == [1, 2, 3, 19, 41]
    assert (cache.size, cache.evictable, slots_of(cache.match([1, 2]))) == (0, 0, [])
    with pytest.raises(RuntimeError, match="evicted"):
        cache.lock(result)
    cache.check()


def test_check_finds_a_slot_that_is_owned_twice() -> None:
    cache = radix()
    cache.insert([1], [7])
    cache.insert([2], [7])
    with pytest.raises(AssertionError, match="cached twice"):
        cache.check()


def test_check_finds_pages_that_are_torn() -> None:
    cache = radix(2)
    cache.insert([1, 2], [3, 4])
    with pytest.raises(AssertionError, match="not adjacent"):
        cache.check()


def test_deep_trees_are_no_trouble() -> None:
    cache = radix()
    length = 1200
    for end in range(1, length + 1):
        result = cache.insert(range(end), range(end))
    cache.lock(result)
    cache.check()
    cache.unlock(result)
    assert len(cache.evict(length)) == length
    cache.check()


def test_long_prompts_are_read_in_slices_and_only_as_far_as_they_match() -> None:
    class Counting(Sequence[int]):
        """A prompt that counts its reads."""

        def __init__(self, tokens: list[int]) -> None:
            self.tokens, self.reads, self.copied = tokens, 0, 0

        def __len__(self) -> int:
            return len(self.tokens)

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            self.reads += 1
            result = self.tokens[index]
            self.copied += len(result) if isinstance(index, slice) else 1
            return result

    cache = radix()
    length = 100_000
    cache.insert(range(length), range(length))
    whole = Counting(list(range(length)))
    assert len(cache.match(whole).slots) == length
    assert whole.reads < 40
    assert whole.copied <= length + whole.reads
    short = Counting([*range(100), *[-1] * length])
    assert len(cache.match(short).slots) == 100
    assert short.copied < 300


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 191, 192, 193, 1000])
def test_common_length(length: int) -> None:
    run = array("q", range(1000))
    assert common_length(run, [7, *range(length), -1, *range(1000)], 1) == length
    assert common_length(run, [7, *range(length)], 1) == length


TOKENS = st.lists(st.integers(0, 2), max_size=14)
SALTS = st.sampled_from(["", "", "other"])


class Prefixes(RuleBasedStateMachine):
    """Model-based test of the radix cache against a dictionary of page prefixes."""

    page_size = 1
    receipts: Bundle[tuple[str, tuple[int, ...], Match]] = Bundle("receipts")

    def __init__(self) -> None:
        super().__init__()
        self.cache = radix(self.page_size)
        self.pages: dict[tuple[str, tuple[int, ...]], list[int]] = {}  # salt and prefix -> slots of the last page
        self.locked: list[tuple[str, tuple[int, ...]]] = []
        self.next_page = 1

    def prefixes(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.page_size
        return [tuple(tokens[:end]) for end in range(size, len(tokens) - len(tokens) % size + 1, size)]

    def path(self, tokens: Sequence[int], salt: str) -> list[int]:
        results: list[int] = []
        for prefix in self.prefixes(tokens):
            if (salt, prefix) not in self.pages:
                break
            results += self.pages[salt, prefix]
        return results

    def is_locked(self, salt: str, prefix: tuple[int, ...]) -> bool:
        return any(salt == other and held[: len(prefix)] == prefix for other, held in self.locked)

    def free_pages(self) -> int:
        return sum(not self.is_locked(*key) for key in self.pages)

    @rule(tokens=TOKENS, salt=SALTS)
    def match(self, tokens: list[int], salt: str) -> None:
        assert slots_of(self.cache.match(tokens, salt)) == self.path(tokens, salt)

    @rule(tokens=TOKENS, salt=SALTS)
    def insert(self, tokens: list[int], salt: str) -> None:
        prefixes = self.prefixes(tokens)
        tokens = tokens[: len(prefixes) * self.page_size]
        pages = [
            [*range(page * self.page_size, (page + 1) * self.page_size)] for page in self._new_pages(len(prefixes))
        ]
        for prefix, page in zip(prefixes, pages, strict=True):
            self.pages.setdefault((salt, prefix), page)
        result = self.cache.insert(tokens, [slot for page in pages for slot in page], salt)
        assert slots_of(result) == self.path(tokens, salt)

    def _new_pages(self, count: int) -> range:
        self.next_page += count
        return range(self.next_page - count, self.next_page)

    @rule(target=receipts, tokens=TOKENS, salt=SALTS)
    def lock(self, tokens: list[int], salt: str) -> tuple[str, tuple[int, ...], Match]:
        result = self.cache.match(tokens, salt)
        self.cache.lock(result)
        held = tuple(tokens[: len(result.slots)])
        self.locked.append((salt, held))
        return salt, held, result

    @rule(target=receipts, receipt=receipts)
    def lock_again(self, receipt: tuple[str, tuple[int, ...], Match]) -> tuple[str, tuple[int, ...], Match] | object:
        if (receipt[0], receipt[1]) not in self.locked:
            return multiple()
        self.cache.lock(receipt[2])
        self.locked.append((receipt[0], receipt[1]))
        return receipt

    @rule(receipt=consumes(receipts))
    def unlock(self, receipt: tuple[str, tuple[int, ...], Match]) -> None:
        salt, held, match = receipt
        assert slots_of(match) == self.path(held, salt)
        self.cache.unlock(match)
        self.locked.remove((salt, held))

    @rule(count=st.integers(0, 12))
    def evict(self, count: int) -> None:
        possible = self.free_pages() * self.page_size
        freed = self.cache.evict(count)
        assert len(freed) >= min(count, possible)
        self._forget(freed)

    def _forget(self, freed: list[int]) -> None:
        gone = {key: page for key, page in self.pages.items() if set(page) <= set(freed)}
        assert sorted(slot for page in gone.values() for slot in page) == sorted(freed)
        assert not any(self.is_locked(*key) for key in gone)
        self.pages = {key: page for key, page in self.pages.items() if key not in gone}
        for salt, prefix in self.pages:
            assert prefix[: -self.page_size] == () or (salt, prefix[: -self.page_size]) in self.pages

    @precondition(lambda self: not any(held for _, held in self.locked))
    @rule()
    def reset(self) -> None:
        self._forget(self.cache.reset())
        assert self.pages == {}

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        assert self.cache.size == len(self.pages) * self.page_size
        assert self.cache.evictable == self.free_pages() * self.page_size


class PagedPrefixes(Prefixes):
    page_size = 4


Prefixes.TestCase.settings = PagedPrefixes.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestPrefixes = Prefixes.TestCase
TestPagedPrefixes = PagedPrefixes.TestCase
