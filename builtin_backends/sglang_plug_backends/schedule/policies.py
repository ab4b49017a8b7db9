"""Schedule policies: orders of the waiting queue.

A sequence that was retracted keeps the arrival of its request, so it is among the first of its equals.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglang_plug import Match, Waiting

WINDOW = 256
"""The cache-aware policies look this many sequences up, in order of arrival; those behind them keep their place.
So a step's cost does not grow with the queue, and the head of the queue is reached sooner or later."""

Lookup = Callable[[Waiting], Match]


class FirstCome:
    """By arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        return sorted(waiting, key=_arrival)


class Priority:
    """By the request's priority, then by arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        return sorted(waiting, key=lambda one: (-one.priority, one.arrived))


class LongestPrefix:
    """By the length of the cached prefix, then by arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_arrival)
        head = queue[:WINDOW]
        cached = [len(match(one).slots) for one in head]
        ranks = sorted(range(len(head)), key=lambda index: -cached[index])
        return [head[index] for index in ranks] + queue[WINDOW:]


class DepthFirst:
    """Depth first through the tree of cached prefixes (arXiv 2312.07104, section 3).

    A branch's weight is the number of sequences waiting below it; the heaviest comes first, and within a branch
    the longer prefixes come before the shorter ones, so that a prefix is used by all who want it before the
    cache turns to the next. Equals go by arrival.
    """

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_arrival)
        root = build_tree([(one, match(one)) for one in queue[:WINDOW]])
        return depth_first(root) + queue[WINDOW:]


@dataclass(slots=True, eq=False)
class Branch:
    """A cached prefix, the sequences whose match ends there, and the longer prefixes that go on from it."""

    depth: int
    members: list[Waiting] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)
    weight: int = 0
    arrived: float = float("inf")
    """The earliest arrival in the branch."""


def build_tree(matches: Sequence[tuple[Waiting, Match]]) -> Branch:
    """The tree of the matched prefixes.

    A KV slot belongs to one place in the cache, so prefixes are shared where slots are: in the sorted list of
    slot paths every branch is a run of neighbours.
    """
    groups: dict[object, tuple[array[int], list[Waiting]]] = {}
    for one, found in matches:
        key = found.node if len(found.slots) else None  # salts do not matter where nothing is cached
        if key not in groups:
            groups[key] = (array("q", found.slots), [])
        groups[key][1].append(one)
    root = Branch(0)
    open_branches, previous = [root], array("q")
    for path, members in sorted(groups.values(), key=lambda group: group[0]):
        shared = _shared(previous, path)
        closed = None
        while open_branches[-1].depth > shared:
            closed = open_branches.pop()
        top = open_branches[-1]
        if closed is not None and top.depth < shared:  # nobody's match ends where the two paths part
            top.children.remove(closed)
            fork = Branch(shared, children=[closed])
            top.children.append(fork)
            open_branches.append(fork)
        if path:
            branch = Branch(len(path), members)
            open_branches[-1].children.append(branch)
            open_branches.append(branch)
        else:
            root.members += members
        previous = path
    return root


def depth_first(root: Branch) -> list[Waiting]:
    """The members of a tree, heaviest branch first, longest prefix first."""
    branches = [root]
    for branch in branches:  # grows while it is read: parents before children
        branches += branch.children
    for branch in reversed(branches):
        branch.weight = len(branch.members) + sum(child.weight for child in branch.children)
        arrivals = [one.arrived for one in branch.members] + [child.arrived for child in branch.children]
        branch.arrived = min(arrivals, default=branch.arrived)
    ordered: list[Waiting] = []
    stack = [(root, False)]
    while stack:
        branch, done = stack.pop()
        if done:
            ordered += branch.members
            continue
        stack.append((branch, True))
        lightest_first = sorted(branch.children, key=lambda child: (child.weight, -child.arrived))
        stack += [(child, False) for child in lightest_first]
    return ordered


def _shared(one: array[int], other: array[int]) -> int:
    """Length of the common prefix, by bisection: prefixes agree up to there and nowhere beyond."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _arrival(one: Waiting) -> float:
    return one.arrived
