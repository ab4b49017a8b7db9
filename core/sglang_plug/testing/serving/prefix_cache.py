"""Conformance test of prefix caches: random operations, compared with a list of what the cache owns."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang_plug.contracts.serving.cache import EvictionPolicy, Match, NodeStats, PrefixCache
from sglang_plug.plugins.registry import Plugins
from sglang_plug.testing.growth import check_growth

from .cache_ledger import Ledger

MakeCache = Callable[[int, EvictionPolicy, Callable[[], float]], PrefixCache]
PAGE_SIZES = (1, 4)
STEPS = 250
SALTS = ("", "tenant")
LONGEST = 24
"""Greatest number of pages of a random sequence."""
DEEP = 1200
"""Turns of a conversation, each of which continues the one before: more than Python's limit of recursion."""
KINDS: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda tokens: array("q", tokens),
}


class _Recorder:
    """A policy that evicts the longest unused leaf, and checks the statistics that it is given."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.calls = now, 0

    def eviction_priority(self, node: NodeStats) -> float:
        self.calls += 1
        assert 0 < node.tokens <= node.depth, f"a leaf has {node.tokens} tokens at depth {node.depth}"
        assert node.created <= node.used <= self.now(), (
            f"a leaf was created at {node.created} and used at {node.used}, and the clock says {self.now()}"
        )
        assert node.hits >= 0, f"a leaf has {node.hits} hits"
        return node.used


class _Clock:
    """A clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.time = 10.0

    def __call__(self) -> float:
        return self.time


def check_prefix_cache(name_or_class: str | MakeCache) -> None:
    """Match, insert, lock, evict and reset at random, with pages, salts and prefixes that branch, and compare.

    Matches are the longest cached prefix in the slots that were inserted; no slot is lost, owned twice or evicted while
    it is locked; eviction frees what is wanted, not much more, in the order of the policy; long conversations and
    prompts take time in proportion to their length. A cache may decline to keep anything.

    Args:
        name_or_class: the class, or the name an installed plugin declared it under.

    Raises:
        AssertionError: says what is wrong, and after which operation.
        PluginError: no plugin, or more than one, declares the name.
    """
    make: MakeCache = name_or_class if not isinstance(name_or_class, str) else _declared(name_or_class)
    for page_size in PAGE_SIZES:
        for seed in range(3):
            _check_random_operations(make, page_size, random.Random(seed))
        _check_eviction_order(make, page_size)
        _check_policy_decides(make, page_size)
    _check_caller_keeps_lists(make)
    _check_negative_tokens(make)
    _check_conversation(make)
    _check_growth(make)


def _declared(name: str) -> MakeCache:
    cache: MakeCache = Plugins.discover().get("prefix-cache", name).factory(PrefixCache)
    return cache


def _cache(make: MakeCache, page_size: int, policy: EvictionPolicy | None = None) -> tuple[Ledger, _Clock]:
    clock = _Clock()
    cache = make(page_size, policy or _Recorder(clock), clock)
    assert isinstance(cache, PrefixCache), f"{type(cache).__name__} is not a PrefixCache"
    return Ledger(cache, page_size), clock


def _check_random_operations(make: MakeCache, page_size: int, generator: random.Random) -> None:
    ledger, clock = _cache(make, page_size)
    locked: list[Match] = []
    for number in range(STEPS):
        clock.time += generator.choice((0.0, 1.0))
        salt, kind = generator.choice(SALTS), generator.choice([*KINDS])
        tokens = KINDS[kind](_tokens(generator, page_size))
        ledger.where = f"page size {page_size}, operation {number + 1}"
        match generator.choice(("insert", "insert", "match", "lock", "unlock", "evict")):
            case "insert":
                whole = tokens[: len(tokens) // page_size * page_size]
                ledger.insert(whole, salt, generator.randint(0, 3))
            case "match":
                ledger.match(tokens, salt, generator.randint(0, 3))
            case "lock":
                locked.append(ledger.match(tokens, salt))
                ledger.lock(locked[-1])
            case "unlock" if locked:
                ledger.unlock(locked.pop(generator.randrange(len(locked))))
            case "evict":
                ledger.evict(generator.choice((0, 1, page_size, 3 * page_size, 20 * page_size)))
        ledger.check()
    _check_outline(ledger)
    _check_reset(ledger, locked)


def _check_outline(ledger: Ledger) -> None:
    """Compare what the cache shows to operators with its size, and with itself."""
    for max_runs in (0, 1, 7, 10_000):
        runs = ledger.cache.outline(max_runs)
        where = f"{ledger.where}: outline({max_runs})"
        assert len(runs) <= max_runs, f"{where} returned {len(runs)} runs"
        listed_tokens = sum(run.tokens for run in runs)
        assert listed_tokens <= ledger.cache.size, f"{where} shows {listed_tokens} tokens of {ledger.cache.size}"
        listed = [0] * len(runs)
        for index, run in enumerate(runs):
            assert run.tokens > 0 and run.hits >= 0 and run.idle >= 0, f"{where} returned {run}"
            assert run.parent is None or 0 <= run.parent < index, f"{where}: run {index} stands before its parent"
            if run.parent is not None:
                listed[run.parent] += 1
        if listed_tokens == ledger.cache.size and runs:
            locked = sum(run.tokens for run in runs if run.locked)
            expected = ledger.cache.size - ledger.cache.evictable
            assert locked == expected, f"{where} shows {locked} locked tokens, and {expected} are locked"
        for run, count in zip(runs, listed, strict=True):
            assert count <= run.children, f"{where} lists {count} runs below one with {run.children}"


def _tokens(generator: random.Random, page_size: int) -> list[int]:
    """Return tokens that often share a prefix with others, and end anywhere in a page."""
    pages = generator.randint(0, LONGEST)
    tokens = [1] * (generator.randint(0, pages) * page_size)
    while len(tokens) < pages * page_size:
        tokens += [generator.choice((1, 2, 3))] * generator.choice((1, page_size))
    return tokens


def _check_reset(ledger: Ledger, locked: list[Match]) -> None:
    ledger.where = "before reset()"
    held = next((match for match in locked if len(match.slots)), None)
    if held is not None:
        try:
            ledger.cache.reset()
        except RuntimeError:
            pass
        else:
            raise AssertionError("reset() must raise RuntimeError while a prefix is locked")
        ledger.check()
    for match in locked:
        ledger.unlock(match)
    ledger.check()
    ledger.reset()
    ledger.where = "after reset()"
    ledger.insert([1, 2, 3, 4] * 4, "", 0)
    ledger.check()


def _families(ledger: Ledger, page_size: int, count: int = 8, pages: int = 6) -> list[list[int]]:
    """Insert prefixes that share nothing; return them, or nothing if the cache keeps nothing."""
    prefixes = [[100 + number] * (page_size * pages) for number in range(count)]
    for tokens in prefixes:
        ledger.insert(tokens, "", 0)
    return prefixes if ledger.owned else []


def _check_eviction_order(make: MakeCache, page_size: int) -> None:
    """Evict in turn, by a policy that evicts the longest unused first: neither too little nor too much."""
    ledger, clock = _cache(make, page_size)
    prefixes = _families(ledger, page_size)
    ledger.where = f"page size {page_size}, eviction of the longest unused of {len(prefixes)} prefixes"
    by_use = [prefixes[(number * 5) % len(prefixes)] for number in range(len(prefixes))]
    for tokens in by_use:
        clock.time += 1
        ledger.match(tokens, "")
    for tokens in by_use:
        before = ledger.owned
        freed = ledger.evict(1)
        own = {slot for slot, owner in before.items() if owner == tokens[0]}
        assert set(freed) <= own, (
            f"{ledger.where}: evict(1) freed slots of a prefix that was used later, or more than one leaf; "
            "the leaf with the lowest key of the policy is evicted first, and no more than is wanted"
        )
        ledger.evict(len(own) - len(freed))


def _check_policy_decides(make: MakeCache, page_size: int) -> None:
    class MostUrgentFirst:
        def eviction_priority(self, node: NodeStats) -> Any:
            return -node.priority

    ledger, clock = _cache(make, page_size, MostUrgentFirst())
    prefixes = _families(ledger, page_size, count=3)
    ledger.where = f"page size {page_size}, a policy that evicts prefixes of urgent requests first"
    for number, tokens in enumerate(prefixes):
        clock.time += 1
        ledger.match(tokens, "", priority=(0, 9, 4)[number])
        ledger.match(tokens, "", priority=0)
    if prefixes:
        before = ledger.owned
        freed = ledger.evict(1)
        owners = {before[slot] for slot in freed}
        assert owners == {prefixes[1][0]}, (
            f"{ledger.where}: another leaf was evicted; NodeStats.priority must be the highest of the requests that "
            "used the leaf, and the policy's lowest key goes first"
        )


def _check_caller_keeps_lists(make: MakeCache) -> None:
    """The caller goes on with the lists that it gave, and with those that it was given."""
    ledger, _ = _cache(make, 1)
    ledger.where = "a caller that changes the lists of tokens and slots that it gave to insert()"
    tokens, slots = [5, 6, 7, 8], ledger.new_slots(4)
    ledger.insert(tokens, "", 0, slots)
    tokens[:], slots[:] = [9] * 4, [0] * 4
    ledger.match([5, 6, 7, 8], "")
    ledger.check()


def _check_negative_tokens(make: MakeCache) -> None:
    """Tokens of images are negative numbers of 63 bits."""
    ledger, _ = _cache(make, 1)
    ledger.where = "tokens of images, which are large negative numbers"
    image, other = ([-1 - ((number + first) << 55) for number in range(40)] for first in (0, 50))
    for tokens in ([1, 2, *image, 3], [1, 2, *other, 3], [1, 2, -1, 3], [1, 2, -2, 3]):  # hash(-1) == hash(-2)
        ledger.insert(tokens, "", 0)
        ledger.match([*tokens, 4], "")
    ledger.check()


def _check_conversation(make: MakeCache) -> None:
    ledger, clock = _cache(make, 1)
    ledger.where = f"a conversation of {DEEP} turns"
    cache, tokens, slots = ledger.cache, array("q"), array("q")
    for number in range(DEEP):
        clock.time += 1
        tokens.append(number % 7)
        slots.append(number + 1)
        try:
            kept = cache.insert(tokens, slots)
        except Exception as error:
            raise AssertionError(
                f"{ledger.where}: insert() raised {type(error).__name__} in turn {number + 1}: {error}"
            ) from error
    try:
        cache.lock(kept)
        cache.unlock(kept)
        cache.check()
        size = cache.size
        freed = cache.evict(2 * DEEP)
    except Exception as error:
        raise AssertionError(f"{ledger.where}: raised {type(error).__name__}: {error}") from error
    assert len(freed) == size, f"{ledger.where}: evict() of everything freed {len(freed)} of {size} slots"


def _check_growth(make: MakeCache) -> None:
    def work(count: int) -> Callable[[], object]:
        ledger, _ = _cache(make, 1)
        tokens = array("q", range(count))
        slots = array("q", range(1, count + 1))

        def run() -> None:
            ledger.cache.insert(tokens, slots)
            match = ledger.cache.match(tokens)
            ledger.cache.lock(match)
            ledger.cache.unlock(match)
            ledger.cache.evict(count)

        return run

    check_growth(work, (2000, 8000), "insert(), match() and evict() of one long prompt")
    check_growth(lambda count: _many(make, count), (500, 4000), "match() and evict() among many prompts")


def _many(make: MakeCache, count: int) -> Callable[[], object]:
    ledger, clock = _cache(make, 1)
    prompts = list(_prompts(count))

    def run() -> None:
        for number, tokens in enumerate(prompts):
            clock.time += 1
            ledger.cache.insert(tokens, range(1 + 4 * number, 5 + 4 * number))
        for tokens in prompts:
            ledger.cache.match(tokens)
        ledger.cache.evict(4 * count)

    return run


def _prompts(count: int) -> Iterator[list[int]]:
    for number in range(count):
        yield [number, 1, 2, 3]
