"""Which parts of a recursive grammar may be tokens of llguidance's parser.

Its lexer takes the longest token that matches, even where the rest of a rule then cannot follow. So no token may be the
beginning of another one, or of itself. Parts for which that does not hold are taken apart, down to single characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug_backends.grammars.ebnf import LAST, Name, Node, OneOf, Parts, Repeat, Rules, Text, children, names

MOST_STATES = 400
"""Of one token; what has more is taken apart."""
MOST_PAIRS = 200_000
"""Pairs of states that are looked at for one grammar; beyond, every character is a token of its own."""
Ranges = tuple[tuple[int, int], ...]


def recursive(rules: Rules) -> set[str]:
    """Rules that lead to themselves, and those that lead there."""
    uses = {name: set(names(body)) for name, body in rules.items()}
    plain = set[str]()
    while found := {name for name, used in uses.items() if name not in plain and used <= plain}:
        plain |= found
    return rules.keys() - plain


class Lexemes:
    """The parts of ``rules`` that are tokens."""

    def __init__(self, rules: Rules, reached: Iterable[str]) -> None:
        self._rules, self._recursive = rules, recursive(rules)
        self._apart = set[Node]()
        self._pairs = 0
        bodies = [rules[name] for name in reached if name in self._recursive]
        while found := self._conflicts(self._collect(bodies)):
            self._apart |= found

    def is_one(self, node: Node) -> bool:
        """Whether ``node`` is a token as a whole."""
        return node not in self._apart and not any(name in self._recursive for name in names(node))

    def _collect(self, bodies: Iterable[Node]) -> dict[Node, _Machine]:
        found: dict[Node, _Machine] = {}
        open_ = list(bodies)
        while open_:
            node = open_.pop()
            if node in found or (isinstance(node, Name) and node.name in self._recursive):
                continue
            if self.is_one(node):
                machine = _Machine(self._rules)
                if machine.add(node):
                    found[node] = machine
                    continue
                self._apart.add(node)
            open_ += self._inside(node)
        return found

    def _inside(self, node: Node) -> list[Node]:
        """What ``node`` is made of."""
        if isinstance(node, Name):
            return [self._rules[node.name]]
        if isinstance(node, Text):
            return [Text(one) for one in node.text] if len(node.text) > 1 else []
        return list(children(node))

    def _conflicts(self, found: dict[Node, _Machine]) -> set[Node]:
        """Tokens of which another one, or they themselves, is a beginning."""
        wrong = {node for node, machine in found.items() if machine.can_be_empty and node != Text("")}
        for longer, machine in found.items():
            if longer not in wrong and any(self._is_beginning(other, machine) for other in found.values()):
                wrong.add(longer)
        return wrong

    def _is_beginning(self, short: _Machine, longer: _Machine) -> bool:
        """Whether a text of ``short`` can go on as a text of ``longer``."""
        open_ = {(one, other) for one in short.start for other in longer.start}
        seen = set(open_)
        while open_:
            one, other = open_.pop()
            if one == short.end and other != longer.end:
                return True
            self._pairs += 1
            if self._pairs > MOST_PAIRS:
                return len(longer.steps) > 2
            for ranges, after in short.steps.get(one, ()):
                for others, following in longer.steps.get(other, ()):
                    if _meet(ranges, others):
                        new = {(a, b) for a in short.reached(after) for b in longer.reached(following)} - seen
                        seen |= new
                        open_ |= new
        return False


def _meet(one: Ranges, other: Ranges) -> bool:
    return any(first <= end and start <= last for first, last in one for start, end in other)


class _Machine:
    """A part as an automaton; from every state the end can be reached."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.steps: dict[int, list[tuple[Ranges, int]]] = {}
        self._jumps: dict[int, list[int]] = {}
        self._count, self.end = 1, 0

    @property
    def start(self) -> set[int]:
        """States before the first character."""
        return self.reached(0)

    @property
    def can_be_empty(self) -> bool:
        return self.end in self.start

    def add(self, node: Node) -> bool:
        """Build it; False if it is too large."""
        try:
            self.end = self._build(node, 0)
        except OverflowError:
            return False
        return True

    def reached(self, state: int) -> set[int]:
        """``state``, and where one is without a character; only where characters leave, and the end."""
        found, open_ = {state}, [state]
        while open_:
            new = [one for one in self._jumps.get(open_.pop(), ()) if one not in found]
            found.update(new)
            open_ += new
        return {one for one in found if one == self.end or one in self.steps}

    def _new(self) -> int:
        self._count += 1
        if self._count > MOST_STATES:
            raise OverflowError
        return self._count - 1

    def _jump(self, start: int, end: int) -> None:
        self._jumps.setdefault(start, []).append(end)

    def _step(self, start: int, ranges: Ranges) -> int:
        end = self._new()
        self.steps.setdefault(start, []).append((ranges, end))
        return end

    def _build(self, node: Node, start: int) -> int:
        """Returns where ``node`` ends; nothing leads back to ``start`` afterwards."""
        match node:
            case Text():
                for one in node.text:
                    start = self._step(start, ((ord(one), ord(one)),))
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
        for _ in range(node.least):
            start = self._build(node.body, start)
        end = self._new()
        self._jump(start, end)
        if node.most is None:
            first = self._new()
            self._jump(start, first)
            again = self._build(node.body, first)
            self._jump(again, first)
            self._jump(again, end)
            return end
        for _ in range(node.most - node.least):
            first = self._new()
            self._jump(start, first)
            start = self._build(node.body, first)
            self._jump(start, end)
        return end


def _outside(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for first, last in sorted(ranges):
        if first > start:
            found.append((start, first - 1))
        start = max(start, last + 1)
    return (*found, (start, LAST)) if start <= LAST else tuple(found)
