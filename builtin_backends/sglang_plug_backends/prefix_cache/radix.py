"""Prefix cache as a radix tree of pages (RadixAttention, arXiv 2312.07104).

An edge is a run of whole pages; the children of a node differ in their first page. The tree of a salt shares nothing
with the trees of other salts.

Receipts: ``Match.node`` is the node whose run ends the prefix. A match that ends inside a run splits it, and a split
makes a new node for the *upper* part: every earlier receipt referred to the end of the run, which stays the old node.
The empty prefix has no node; its receipts carry the salt instead, so that an uncached salt costs no memory.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sglang_plug import CachedSegment, EvictionPolicy, Match, NodeStats, PrefixCache

NODES_PER_RUN = 4
"""Nodes that an outline looks at for each one that it returns."""
FIRST_COMPARED = 64
"""Tokens compared at first between a prompt and a run; doubled as long as they agree."""


class _Node:
    """A run of tokens, its slots and its children. A root has an empty run, a salt and no parent."""

    __slots__ = ("tokens", "slots", "children", "parent", "locks", "stats", "serial", "salt")

    def __init__(self, tokens: array[int], slots: array[int], stats: NodeStats, serial: int, salt: str = "") -> None:
        self.tokens, self.slots, self.stats, self.serial, self.salt = tokens, slots, stats, serial, salt
        self.children: dict[Hashable, _Node] = {}
        self.parent: _Node | None = None
        self.locks = 0  # number of locks on this node and its descendants


class RadixCache(PrefixCache):
    """Prefix cache that shares every common prefix. ``match`` and ``insert`` take time linear in the prefix only."""

    def __init__(self, page_size: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        super().__init__(page_size, policy, clock)
        self._serials = itertools.count()
        self._roots: dict[str, _Node] = {}
        self._leaves: dict[_Node, None] = {}  # unlocked leaves, in the order of becoming one
        self._size = self._evictable = 0

    def match(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return self._look_up(tokens, salt, priority, hits=1)

    def find(self, tokens: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        return self._look_up(tokens, salt, priority, hits=0)

    def insert(self, tokens: Sequence[int], slots: Sequence[int], salt: str = "", priority: int = 0) -> Match:
        if len(tokens) != len(slots) or len(tokens) % self.page_size:
            raise ValueError(
                f"{len(tokens)} tokens in {len(slots)} slots cannot be cached: "
                f"both must be whole pages of {self.page_size}"
            )
        path = self._walk(tokens, salt)
        self._use(path, priority, hits=0)
        known = path[-1].stats.depth if path else 0
        if known < len(tokens):
            parent = path[-1] if path else self._root(salt)
            node = self._node(array("q", tokens[known:]), array("q", slots[known:]), len(tokens), priority)
            self._attach(node, parent)
            self._leaves.pop(parent, None)
            self._leaves[node] = None
            self._size += len(node.slots)
            self._evictable += len(node.slots)
            path.append(node)
        return self._receipt(path, salt)

    def lock(self, match: Match) -> None:
        for node in self._held(match):
            if node.locks == 0:
                self._evictable -= len(node.slots)
                self._leaves.pop(node, None)
            node.locks += 1

    def unlock(self, match: Match) -> None:
        for node in self._held(match):
            if node.locks == 0:
                raise RuntimeError("a prefix was unlocked more often than it was locked")
            node.locks -= 1
            if node.locks == 0:
                self._evictable += len(node.slots)
                if not node.children:
                    self._leaves[node] = None

    def evict(self, count: int) -> list[int]:
        freed: list[int] = []
        if count <= 0:
            return freed
        heap = [(self.policy.eviction_priority(node.stats), node.serial, node) for node in self._leaves]
        heapq.heapify(heap)
        while heap and len(freed) < count:
            node = heapq.heappop(heap)[2]
            freed += node.slots
            parent = self._remove(node)
            if parent in self._leaves:
                heapq.heappush(heap, (self.policy.eviction_priority(parent.stats), parent.serial, parent))
        return freed

    def reset(self) -> list[int]:
        if self._evictable != self._size:
            raise RuntimeError(f"{self._size - self._evictable} cached slots are in use; the cache cannot be reset")
        freed = [slot for node in self._nodes() for slot in node.slots]
        for node in list(self._nodes()):
            node.parent = None  # so that an old receipt is refused
        self._roots.clear()
        self._leaves.clear()
        self._size = self._evictable = 0
        return freed

    @property
    def size(self) -> int:
        return self._size

    @property
    def evictable(self) -> int:
        return self._evictable

    def outline(self, max_runs: int) -> Sequence[CachedSegment]:
        """Return the runs used last: of the ones with very many siblings, the oldest and the newest are looked at."""
        now, budget, runs = self.clock(), max_runs * NODES_PER_RUN, list[CachedSegment]()
        frontier: list[tuple[float, int, int | None, _Node]] = []
        parents: list[tuple[int | None, _Node]] = [
            (None, root) for root in itertools.islice(_ends(self._roots), max_runs)
        ]
        while True:
            for index, parent in parents:
                for node in itertools.islice(_ends(parent.children), min(max_runs, budget)):
                    heapq.heappush(frontier, (-node.stats.used, node.serial, index, node))
                    budget -= 1
            if not frontier or len(runs) >= max_runs:
                return runs
            _, _, index, node = heapq.heappop(frontier)
            stats = node.stats
            runs.append(
                CachedSegment(
                    index, stats.tokens, stats.hits, max(0.0, now - stats.used), node.locks > 0, len(node.children)
                )
            )
            parents = [(len(runs) - 1, node)]

    def check(self) -> None:
        nodes = list(self._nodes())
        for node in nodes:
            self._check_node(node)
        slots = array("q")
        for node in nodes:
            slots += node.slots
        assert len(slots) == self._size, f"{len(slots)} slots are cached, but size is {self._size}"
        if slots:
            self._check_slots(torch.frombuffer(slots, dtype=torch.int64))
        free = sum(len(node.slots) for node in nodes if node.locks == 0)
        assert free == self._evictable, f"{free} slots are unlocked, but evictable is {self._evictable}"
        leaves = {node for node in nodes if node.locks == 0 and not node.children}
        assert leaves == set(self._leaves), "the list of unlocked leaves is wrong"
        assert all(root.children for root in self._roots.values()), "a salt without a prefix was kept"

    def _check_node(self, node: _Node) -> None:
        parent, size = node.parent, self.page_size
        assert parent is not None and parent.children.get(self._first(node.tokens, 0)) is node, "a child is misplaced"
        assert len(node.tokens) == len(node.slots) == node.stats.tokens > 0, "a run's lengths differ"
        assert len(node.tokens) % size == 0, "a run is not whole pages"
        assert node.stats.depth == parent.stats.depth + len(node.tokens), "a run's depth is wrong"
        assert node.locks >= sum(child.locks for child in node.children.values()), "a locked run has a free parent"

    def _check_slots(self, slots: Tensor) -> None:
        """Check that ``slots`` is ``[size]`` int64 and consists of whole pages."""
        assert slots.min() >= 0 and slots.bincount().max() == 1, "a slot is cached twice"
        pages = slots.view(-1, self.page_size)
        adjacent = pages[:, :1] + torch.arange(self.page_size)
        assert (pages[:, 0] % self.page_size == 0).all() and (pages == adjacent).all(), (
            "a page's slots are not adjacent"
        )

    def _walk(self, tokens: Sequence[int], salt: str) -> list[_Node]:
        """Return the nodes of the longest cached prefix without the root; a partly matched run is split."""
        path: list[_Node] = []
        node, done = self._roots.get(salt), 0
        while node is not None and done + self.page_size <= len(tokens):
            child = node.children.get(self._first(tokens, done))
            if child is None:
                break
            same = common_length(child.tokens, tokens, done)
            same -= same % self.page_size
            if same < len(child.tokens):
                path.append(self._split(child, same))
                break
            path.append(child)
            node, done = child, done + same
        return path

    def _split(self, lower: _Node, at: int) -> _Node:
        """Move the first ``at`` tokens of a run to a new parent node and return it."""
        stats, parent = lower.stats, lower.parent
        assert parent is not None
        upper = self._node(lower.tokens[:at], lower.slots[:at], stats.depth - stats.tokens + at, stats.priority)
        upper.stats.created, upper.stats.used, upper.stats.hits = stats.created, stats.used, stats.hits
        upper.locks = lower.locks
        self._attach(upper, parent)
        lower.tokens, lower.slots = lower.tokens[at:], lower.slots[at:]
        stats.tokens -= at
        self._attach(lower, upper)
        return upper

    def _node(self, tokens: array[int], slots: array[int], depth: int, priority: int) -> _Node:
        now = self.clock()
        stats = NodeStats(tokens=len(tokens), depth=depth, created=now, used=now, hits=0, priority=priority)
        return _Node(tokens, slots, stats, next(self._serials))

    def _root(self, salt: str) -> _Node:
        if salt not in self._roots:
            stats = NodeStats(tokens=0, depth=0, created=0.0, used=0.0, hits=0, priority=0)
            self._roots[salt] = _Node(array("q"), array("q"), stats, next(self._serials), salt)
        return self._roots[salt]

    def _attach(self, node: _Node, parent: _Node) -> None:
        parent.children[self._first(node.tokens, 0)] = node
        node.parent = parent

    def _remove(self, node: _Node) -> _Node:
        """Remove an unlocked leaf and return its parent."""
        parent = node.parent
        assert parent is not None and not node.children and node.locks == 0
        del parent.children[self._first(node.tokens, 0)]
        del self._leaves[node]
        node.parent = None  # so that an old receipt is refused
        self._size -= len(node.slots)
        self._evictable -= len(node.slots)
        if parent.children:
            return parent
        if parent.parent is not None:
            if parent.locks == 0:
                self._leaves[parent] = None
        else:
            del self._roots[parent.salt]
        return parent

    def _look_up(self, tokens: Sequence[int], salt: str, priority: int, hits: int) -> Match:
        path = self._walk(tokens, salt)
        self._use(path, priority, hits)
        return self._receipt(path, salt)

    def _use(self, path: list[_Node], priority: int, hits: int) -> None:
        now = self.clock() if path else 0.0
        for node in path:
            stats = node.stats
            stats.used, stats.hits, stats.priority = now, stats.hits + hits, max(stats.priority, priority)

    def _receipt(self, path: list[_Node], salt: str) -> Match:
        if not path:
            return Match((), salt)
        slots = array("q")
        for node in path:
            slots += node.slots
        return Match(slots, path[-1])

    def _held(self, match: Match) -> Iterator[_Node]:
        """Yield the nodes that a receipt locks, deepest first."""
        node = match.node
        if not isinstance(node, _Node):
            return
        if node.parent is None:
            raise RuntimeError("the prefix was evicted after it was matched; lock a match before anything is evicted")
        while node.parent is not None:
            yield node
            node = node.parent

    def _nodes(self) -> Iterator[_Node]:
        """Yield every node except the roots."""
        stack = list(self._roots.values())
        while stack:
            children = stack.pop().children.values()
            yield from children
            stack += children

    def _first(self, tokens: Sequence[int], start: int) -> Hashable:
        """Return the key of a node among its siblings: the first page."""
        return tokens[start] if self.page_size == 1 else tuple(tokens[start : start + self.page_size])


def _ends(nodes: dict[Any, _Node]) -> Iterator[_Node]:
    """Yield each node once, alternately of the oldest and of the newest."""
    pairs = zip(nodes.values(), reversed(nodes.values()), strict=True)
    return itertools.islice(itertools.chain.from_iterable(pairs), len(nodes))


def common_length(run: array[int], tokens: Sequence[int], start: int) -> int:
    """Count the tokens of ``run`` that agree with ``tokens`` from ``start`` on.

    Compares slices, each twice as long as the one before, so the work is done in C and is proportional to the
    answer, not to the lengths.
    """
    limit = min(len(run), len(tokens) - start)
    done, step = 0, FIRST_COMPARED
    while done < limit:
        mine = run[done : min(done + step, limit)]
        other = array("q", tokens[start + done : start + done + len(mine)])
        if mine != other:
            return done + _first_difference(mine, other)
        done, step = done + len(mine), step * 2
    return limit


def _first_difference(mine: array[int], other: array[int]) -> int:
    """Return the index of the first difference of two arrays of equal length that differ."""
    low, high = 0, len(mine)
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
