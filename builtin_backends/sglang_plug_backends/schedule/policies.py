"""Schedule policies: orders of the waiting queue.

A retracted sequence keeps its request's arrival time, so it is among the first of its equals.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglang_plug import Match, Waiting

WINDOW = 256
"""Number of sequences, in order of arrival, that the cache-aware policies look up; the rest keep their order.

So a step's cost does not grow with the queue, and the head of the queue always advances.
"""

Lookup = Callable[[Waiting], Match]


class FirstCome:
    """Order by arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        return sorted(waiting, key=_arrival)


class Priority:
    """Order by the request's priority, then by arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        return sorted(waiting, key=lambda item: (-item.priority, item.arrived))


class EarliestDeadline:
    """Order by deadline, then by arrival; sequences without a deadline come last and are preempted first."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        return sorted(waiting, key=_urgency)

    def can_preempt(self) -> bool:
        return True

    def preempt(
        self, running: Sequence[Waiting], waiting: Sequence[Waiting], free_running_slots: int
    ) -> tuple[Sequence[Waiting], Sequence[Waiting]]:
        """Preempt the sequences with the latest deadlines in favour of waiting ones with earlier deadlines."""
        if free_running_slots > 0:
            return [], []
        urgent = sorted((sequence for sequence in waiting if sequence.deadline is not None), key=_urgency)
        latest = sorted(running, key=_due, reverse=True)
        pairs = [(old, new) for old, new in zip(latest, urgent, strict=False) if _due(new) < _due(old)]
        return [old for old, _ in pairs], [new for _, new in pairs]


class LongestPrefix:
    """Order by the length of the cached prefix, then by arrival."""

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_arrival)
        head = queue[:WINDOW]
        cached = [len(match(sequence).slots) for sequence in head]
        ranks = sorted(range(len(head)), key=lambda index: -cached[index])
        return [head[index] for index in ranks] + queue[WINDOW:]


class DepthFirst:
    """Order depth first through the tree of cached prefixes (arXiv 2312.07104, section 3).

    A branch's weight is the number of sequences waiting below it; the heaviest comes first, and within a branch the
    longer prefixes come first, so that a prefix is used by all its sequences before the cache turns to the next. Ties
    are broken by arrival.
    """

    def order(self, waiting: Sequence[Waiting], match: Lookup) -> Sequence[Waiting]:
        queue = sorted(waiting, key=_arrival)
        root = build_tree([(sequence, match(sequence)) for sequence in queue[:WINDOW]])
        return depth_first(root) + queue[WINDOW:]


@dataclass(slots=True, eq=False)
class Branch:
    """A cached prefix, the sequences whose match ends there, and the longer prefixes that extend it."""

    depth: int
    members: list[Waiting] = field(default_factory=list)
    children: list[Branch] = field(default_factory=list)
    weight: int = 0
    arrived: float = float("inf")
    """Earliest arrival in the branch."""


def build_tree(matches: Sequence[tuple[Waiting, Match]]) -> Branch:
    """Build the tree of the matched prefixes.

    A KV slot belongs to one node of the cache, so prefixes are shared where slots are: in the sorted list of
    slot paths every branch is a run of neighbours.
    """
    groups: dict[object, tuple[array[int], list[Waiting]]] = {}
    for item, match in matches:
        key = match.node if len(match.slots) else None  # salts are irrelevant for empty matches
        if key not in groups:
            groups[key] = (array("q", match.slots), [])
        groups[key][1].append(item)
    root = Branch(0)
    open_branches, previous = [root], array("q")
    for path, members in sorted(groups.values(), key=lambda group: group[0]):
        shared = _shared(previous, path)
        closed = None
        while open_branches[-1].depth > shared:
            closed = open_branches.pop()
        top = open_branches[-1]
        if closed is not None and top.depth < shared:  # no match ends at the fork of the two paths
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
    """Yield the members of a tree, heaviest branch first, longest prefix first."""
    branches = [root]
    for branch in branches:  # grows while it is read: parents before children
        branches += branch.children
    for branch in reversed(branches):
        branch.weight = len(branch.members) + sum(child.weight for child in branch.children)
        arrivals = [member.arrived for member in branch.members] + [child.arrived for child in branch.children]
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


def _shared(first: array[int], other: array[int]) -> int:
    """Return the length of the common prefix by bisection: the prefixes agree up to it and nowhere beyond."""
    low, high = 0, min(len(first), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _arrival(waiting: Waiting) -> float:
    return waiting.arrived


def _due(item: Waiting) -> float:
    return float("inf") if item.deadline is None else item.deadline


def _urgency(item: Waiting) -> tuple[float, float]:
    return _due(item), item.arrived
