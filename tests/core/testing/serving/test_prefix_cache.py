from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from sglang_plug import CachedSegment, Match, NodeStats, PluginError, Plugins, PrefixCache
from sglang_plug.testing import check_prefix_cache


@pytest.mark.parametrize("name", Plugins.discover().names("prefix-cache"))
def test_built_in_caches_pass(name: str) -> None:
    check_prefix_cache(name)


class Page:
    """A node of the trie, with one page."""

    def __init__(self, key: tuple[int, ...], slots: list[int], parent: Page | None, now: float, priority: int) -> None:
        self.key, self.slots, self.parent, self.locks = key, slots, parent, 0
        self.children: dict[tuple[int, ...], Page] = {}
        depth = len(slots) + (parent.stats.depth if parent is not None else 0)
        self.stats = NodeStats(tokens=len(slots), depth=depth, created=now, used=now, hits=0, priority=priority)


class Trie(PrefixCache):
    """A correct prefix cache with a node for each page, slow and simple."""

    def __init__(self, page_size: int, policy: Any, clock: Any) -> None:
        super().__init__(page_size, policy, clock)
        self.roots: dict[Any, Page] = {}
        self.pages: list[Page] = []

    def pages_of(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        size = self.page_size
        return [tuple(tokens[start : start + size]) for start in range(0, len(tokens) // size * size, size)]

    def root(self, salt: str) -> Page:
        return self.roots.setdefault(salt, Page((), [], None, 0.0, 0))

    def walk(self, tokens: Sequence[int], salt: str, priority: int) -> list[Page]:
        path, node = [], self.root(salt)
        for key in self.pages_of(tokens):
            if key not in node.children:
                break
            node = node.children[key]
            path.append(node)
        for page in path:
            page.stats.used = self.clock()
            page.stats.hits += 1
            page.stats.priority = max(page.stats.priority, priority)
        return path

    def receipt(self, path: list[Page]) -> Match:
        return Match(array("q", [slot for page in path for slot in page.slots]), path[-1] if path else None)

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return self.receipt(self.walk(tokens, salt, priority))

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        path = self.walk(tokens, salt, priority)
        keys, size = self.pages_of(tokens), self.page_size
        for index in range(len(path), len(keys)):
            parent = path[-1] if path else self.root(salt)
            new = Page(keys[index], list(slots[index * size : index * size + size]), parent, self.clock(), priority)
            parent.children[new.key] = new
            self.pages.append(new)
            path.append(new)
        return self.receipt(path)

    def held(self, match: Match) -> list[Page]:
        page, nodes = match.node, []
        while page is not None and page.parent is not None:
            nodes.append(page)
            page = page.parent
        return nodes

    def lock(self, match: Match) -> None:
        for page in self.held(match):
            page.locks += 1

    def unlock(self, match: Match) -> None:
        for page in self.held(match):
            page.locks -= 1

    def drop(self, page: Page) -> list[int]:
        assert page.parent is not None
        del page.parent.children[page.key]
        self.pages.remove(page)
        return page.slots

    def leaves(self) -> list[Page]:
        return [page for page in self.pages if not page.children and not page.locks]

    def lowest(self) -> Page:
        return min(self.leaves(), key=lambda page: self.policy.eviction_priority(page.stats))

    def evict(self, count: int) -> list[int]:
        freed: list[int] = []
        while len(freed) < count and self.leaves():
            freed += self.drop(self.lowest())
        return freed

    def reset(self) -> list[int]:
        if any(page.locks for page in self.pages):
            raise RuntimeError("in use")
        freed = [slot for page in self.pages for slot in page.slots]
        self.pages.clear()
        self.roots.clear()
        return freed

    @property
    def size(self) -> int:
        return sum(len(page.slots) for page in self.pages)

    @property
    def evictable(self) -> int:
        return sum(len(page.slots) for page in self.pages if not page.locks)

    def check(self) -> None: ...


class ForgetsSalts(Trie):
    def root(self, salt: str) -> Page:
        return super().root("")


class PartOfAPage(Trie):
    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        path = self.walk(tokens, salt, priority)
        matched = self.receipt(path)
        node = path[-1] if path else self.root(salt)
        suffix = list(tokens[len(matched.slots) :])
        for child in node.children.values():
            if suffix and child.key[0] == suffix[0]:
                return Match([*matched.slots, child.slots[0]], matched.node)
        return matched


class ShortMatches(Trie):
    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        path = self.walk(tokens, salt, priority)
        return self.receipt(path[:-1] if len(path) > 3 else path)


class TakesDuplicates(Trie):
    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        super().insert(tokens, slots, salt, priority)
        return Match(list(slots), self.match(tokens, salt).node)


class IgnoresLocks(Trie):
    def leaves(self) -> list[Page]:
        return [page for page in self.pages if not page.children]


class LocksOnce(Trie):
    def lock(self, match: Match) -> None:
        for page in self.held(match):
            page.locks = 1

    def unlock(self, match: Match) -> None:
        for page in self.held(match):
            page.locks = 0


class LocksTheEndOnly(Trie):
    def held(self, match: Match) -> list[Page]:
        return super().held(match)[:1]


class NeverUnlocks(Trie):
    def unlock(self, match: Match) -> None: ...


class EvictsParents(Trie):
    def leaves(self) -> list[Page]:
        return [page for page in self.pages if not page.locks]

    def drop(self, page: Page) -> list[int]:
        self.pages.remove(page)
        if page.parent is not None:
            page.parent.children.pop(page.key, None)
        return page.slots


class EvictsTooMuch(Trie):
    def evict(self, count: int) -> list[int]:
        return super().evict(self.size) if count else []


class EvictsTooLittle(Trie):
    def evict(self, count: int) -> list[int]:
        return self.drop(self.lowest()) if count and self.leaves() else []


class EvictsForNothing(Trie):
    def evict(self, count: int) -> list[int]:
        return super().evict(max(1, count))


class EvictsByAge(Trie):
    def lowest(self) -> Page:
        return self.leaves()[0]


class EvictsHighest(Trie):
    def lowest(self) -> Page:
        return max(self.leaves(), key=lambda page: self.policy.eviction_priority(page.stats))


class EvictsTwice(Trie):
    def evict(self, count: int) -> list[int]:
        freed = super().evict(count)
        return freed + freed[:1]


class ForgetsEvictedSlots(Trie):
    def evict(self, count: int) -> list[int]:
        return super().evict(count)[1:]


class LastPriority(Trie):
    def walk(self, tokens: Sequence[int], salt: str, priority: int) -> list[Page]:
        path = super().walk(tokens, salt, priority)
        for page in path:
            page.stats.priority = priority
        return path


class MatchIsNoUse(Trie):
    def walk(self, tokens: Sequence[int], salt: str, priority: int) -> list[Page]:
        path = super().walk(tokens, salt, priority)
        for page in path:
            page.stats.used = page.stats.created
        return path


class OwnClock(Trie):
    def __init__(self, page_size: int, policy: Any, clock: Any) -> None:
        import time

        super().__init__(page_size, policy, time.time)


class WrongDepth(Trie):
    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        inserted = super().insert(tokens, slots, salt, priority)
        if inserted.node is not None:
            inserted.node.stats.depth = 0
        return inserted


class ResetsLocked(Trie):
    def reset(self) -> list[int]:
        freed = [slot for page in self.pages for slot in page.slots]
        self.pages.clear()
        self.roots.clear()
        return freed


class ResetKeepsTheTree(Trie):
    def reset(self) -> list[int]:
        freed = super().reset()
        self.pages.clear()
        self.roots.update(self.old) if hasattr(self, "old") else None
        return freed

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        self.old = dict(self.roots)
        return super().insert(tokens, slots, salt, priority)


class ResetReturnsNothing(Trie):
    def reset(self) -> list[int]:
        super().reset()
        return []


class CountsPages(Trie):
    @property
    def size(self) -> int:
        return len(self.pages)


class CountsLocked(Trie):
    @property
    def evictable(self) -> int:
        return self.size


class KeepsTheCallersLists(Trie):
    """Keeps references to the caller's lists, and inserts them only at the next match."""

    def __init__(self, page_size: int, policy: Any, clock: Any) -> None:
        super().__init__(page_size, policy, clock)
        self.inserted: list[tuple[str, Sequence[int], Sequence[int]]] = []

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        for own_salt, own, slots in self.inserted:
            super().insert(own, slots, own_salt)
        return super().match(tokens, salt, priority)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        if isinstance(tokens, list) and len(tokens) == 4 and tokens[0] == 5:
            self.inserted.append((salt, tokens, slots))
            return Match(list(slots), None)
        return super().insert(tokens, slots, salt, priority)


class NeedsLists(Trie):
    def pages_of(self, tokens: Any) -> list[tuple[int, ...]]:
        return super().pages_of(tokens + [])


class Unsigned(Trie):
    def pages_of(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return super().pages_of(array("Q", tokens))


class ThirtyTwoBits(Trie):
    def pages_of(self, tokens: Sequence[int]) -> list[tuple[int, ...]]:
        return super().pages_of([token & 0xFFFFFFFF for token in tokens])


class Recursive(Trie):
    def walk(self, tokens: Sequence[int], salt: str, priority: int) -> list[Page]:
        def descend(node: Page, keys: list[tuple[int, ...]], start: int) -> list[Page]:
            child = node.children.get(keys[start]) if start < len(keys) else None
            return [] if child is None else [child, *descend(child, keys, start + 1)]

        limit = sys.getrecursionlimit()
        assert limit <= 5000
        path = descend(self.root(salt), self.pages_of(tokens), 0)
        for page in path:
            page.stats.used = self.clock()
            page.stats.priority = max(page.stats.priority, priority)
        return path


class UnhashableNodes(Trie):
    def receipt(self, path: list[Page]) -> Match:
        matched = super().receipt(path)
        return Match(matched.slots, [matched.node])

    def held(self, match: Match) -> list[Page]:
        return super().held(Match(match.slots, match.node[0]))


class FailsItsOwnCheck(Trie):
    def check(self) -> None:
        assert len({page.key for page in self.pages}) == len(self.pages), "two pages have the same tokens"


class SlicesAgain(Trie):
    """Slices each prefix of a prompt from its start, which takes quadratic time."""

    def walk(self, tokens: Sequence[int], salt: str, priority: int) -> list[Page]:
        for end in range(0, len(tokens), self.page_size):
            tuple(tokens[:end])
        return super().walk(tokens, salt, priority)


class HashOnly(Trie):
    """Compares only the hashes of pages, which are equal for -1 and -2."""

    def pages_of(self, tokens: Sequence[int]) -> Any:
        return [hash(page) for page in super().pages_of(tokens)]


class HidesLocks(Trie):
    def outline(self, max_runs: int) -> Sequence[CachedSegment]:
        tops = [page for page in self.pages if page.parent is not None and page.parent.parent is None]
        indices: dict[Page | None, int] = {}
        runs = list[CachedSegment]()
        while tops and len(runs) < max_runs:
            page = tops.pop()
            indices[page] = len(runs)
            parent = indices.get(page.parent)
            runs.append(CachedSegment(parent, len(page.slots), page.stats.hits, 0.0, False, len(page.children)))
            tops += page.children.values()
        return runs


class FindsLess(Trie):
    def find(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return self.match(tokens[: len(tokens) // 2], salt, priority)


BUGS: list[tuple[Any, str]] = [
    (ForgetsSalts, "salt"),
    (PartOfAPage, "and must give"),
    (ShortMatches, r"match\(\) of .* and must give"),
    (TakesDuplicates, r"insert\(\) of .* and must give"),
    (IgnoresLocks, "which is locked"),
    (LocksOnce, "evictable is|which is locked"),
    (LocksTheEndOnly, "evictable is"),
    (NeverUnlocks, "evictable is"),
    (EvictsParents, "freed the middle of a prefix"),
    (EvictsTooMuch, "no more than is wanted"),
    (EvictsTooLittle, r"evict\(\d+\) freed 1 slots, and"),
    (EvictsForNothing, r"evict\(0\) freed"),
    (EvictsByAge, "the leaf with the lowest key"),
    (EvictsHighest, "the leaf with the lowest key"),
    (EvictsTwice, "twice"),
    (ForgetsEvictedSlots, "freed 0 slots|size is"),
    (LastPriority, "NodeStats.priority must be the highest"),
    (MatchIsNoUse, "the leaf with the lowest key"),
    (OwnClock, "and the clock says"),
    (WrongDepth, "at depth 0"),
    (ResetsLocked, r"reset\(\) must raise RuntimeError"),
    (ResetKeepsTheTree, r"after reset\(\)"),
    (ResetReturnsNothing, r"reset\(\) did not return"),
    (CountsPages, "size is"),
    (CountsLocked, "evictable is"),
    (KeepsTheCallersLists, "changes the lists"),
    (NeedsLists, "raised TypeError"),
    (Unsigned, "large negative numbers.*raised OverflowError"),
    (ThirtyTwoBits, "large negative numbers"),
    (Recursive, "RecursionError"),
    (UnhashableNodes, "unhashable"),
    (FailsItsOwnCheck, r"check\(\) raised AssertionError: two pages"),
    (SlicesAgain, "time grows with the power"),
    (HashOnly, r"tokens of images.*must give"),
    (FindsLess, r"find\(\) of .* and must give"),
    (HidesLocks, "locked tokens, and .* are locked"),
]


@pytest.mark.planted_bug("prefix-cache")
@pytest.mark.parametrize(("cache", "message"), BUGS, ids=lambda value: getattr(value, "__name__", ""))
def test_planted_bugs_are_named(cache: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_prefix_cache(cache)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="no prefix-cache named 'radiks'; did you mean 'radix'"):
        check_prefix_cache("radiks")
