"""Parts of a grammar as finite automata over characters."""

from __future__ import annotations

from .tree import LAST, Name, Node, OneOf, Parts, Repeat, Rules, Text, children

Ranges = tuple[tuple[int, int], ...]
"""First and last code point of each range."""


class Machine:
    """A part of a grammar as an automaton; the end can be reached from every state.

    Args:
        rules: what the names in the part say, without recursion.
        max_states: maximum number of states.
    """

    def __init__(self, rules: Rules, max_states: int) -> None:
        self._rules, self._max_states = rules, max_states
        self.steps: dict[int, list[tuple[Ranges, int]]] = {}
        self._jumps: dict[int, list[int]] = {}
        self._count, self.end = 1, 0

    @property
    def start(self) -> set[int]:
        """Return the states before the first character."""
        return self.reached(0)

    @property
    def can_be_empty(self) -> bool:
        return self.end in self.start

    def add(self, node: Node) -> bool:
        """Build the automaton; return False if it is too large."""
        try:
            self.end = self._build(node, 0)
        except OverflowError:
            return False
        return True

    def reached(self, state: int) -> set[int]:
        """Return the states reachable from ``state`` without a character, if characters leave them or they end."""
        reached_states, open_ = {state}, [state]
        while open_:
            new = [item for item in self._jumps.get(open_.pop(), ()) if item not in reached_states]
            reached_states.update(new)
            open_ += new
        return {result for result in reached_states if result == self.end or result in self.steps}

    def _new(self) -> int:
        self._count += 1
        if self._count > self._max_states:
            raise OverflowError
        return self._count - 1

    def _jump(self, start: int, end: int) -> None:
        self._jumps.setdefault(start, []).append(end)

    def _step(self, start: int, ranges: Ranges) -> int:
        end = self._new()
        self.steps.setdefault(start, []).append((ranges, end))
        return end

    def _build(self, node: Node, start: int) -> int:
        """Build ``node`` and return the state where it ends; no edge leads back to ``start`` afterwards."""
        match node:
            case Text():
                for item in node.text:
                    start = self._step(start, ((ord(item), ord(item)),))
                return start
            case OneOf():
                return self._step(start, _outside(node.ranges) if node.negated else node.ranges)
            case Name():
                return self._build(self._rules[node.name], start)
            case Parts():
                for part in node.parts:
                    start = self._build(part, start)
                return start
            case Repeat():
                return self._repeat(node, start)
        end = self._new()
        for branch in children(node):
            first = self._new()
            self._jump(start, first)
            self._jump(self._build(branch, first), end)
        return end

    def _repeat(self, node: Repeat, start: int) -> int:
        for _ in range(node.minimum):
            start = self._build(node.body, start)
        end = self._new()
        self._jump(start, end)
        if node.maximum is None:
            first = self._new()
            self._jump(start, first)
            again = self._build(node.body, first)
            self._jump(again, first)
            self._jump(again, end)
            return end
        for _ in range(node.maximum - node.minimum):
            first = self._new()
            self._jump(start, first)
            start = self._build(node.body, first)
            self._jump(start, end)
        return end


def _outside(ranges: Ranges) -> Ranges:
    gaps, start = [], 0
    for first, last in sorted(ranges):
        if first > start:
            gaps.append((start, first - 1))
        start = max(start, last + 1)
    return (*gaps, (start, LAST)) if start <= LAST else tuple(gaps)
