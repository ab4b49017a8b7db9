"""Which parts of a recursive grammar may be tokens of llguidance's parser.

Its lexer takes the longest token that matches, even where the rest of a rule then cannot follow. So no token may be the
beginning of another one, or of itself. Parts for which that does not hold are taken apart, down to single characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug_backends.grammars.automaton import Machine, Ranges
from sglang_plug_backends.grammars.ebnf import Name, Node, Rules, Text, children, names, uses_of
from sglang_plug_backends.grammars.rule_graph import leading_to_loops

MOST_STATES = 400
"""Of one token; what has more is taken apart."""
MOST_PAIRS = 200_000
"""Pairs of states that are looked at for one grammar; beyond, every character is a token of its own."""


class Lexemes:
    """The parts of ``rules`` that are tokens."""

    def __init__(self, rules: Rules, reached: Iterable[str]) -> None:
        self._rules, self._recursive = rules, leading_to_loops(uses_of(rules))
        self._apart = set[Node]()
        self._pairs = 0
        bodies = [rules[name] for name in reached if name in self._recursive]
        while found := self._conflicts(self._collect(bodies)):
            self._apart |= found

    def is_one(self, node: Node) -> bool:
        """Whether ``node`` is a token as a whole."""
        return node not in self._apart and not any(name in self._recursive for name in names(node))

    def _collect(self, bodies: Iterable[Node]) -> dict[Node, Machine]:
        found: dict[Node, Machine] = {}
        open_ = list(bodies)
        while open_:
            node = open_.pop()
            if node in found or (isinstance(node, Name) and node.name in self._recursive):
                continue
            if self.is_one(node):
                machine = Machine(self._rules, MOST_STATES)
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

    def _conflicts(self, found: dict[Node, Machine]) -> set[Node]:
        """Tokens of which another one, or they themselves, is a beginning."""
        wrong = {node for node, machine in found.items() if machine.can_be_empty and node != Text("")}
        for longer, machine in found.items():
            if longer not in wrong and any(self._is_beginning(other, machine) for other in found.values()):
                wrong.add(longer)
        return wrong

    def _is_beginning(self, short: Machine, longer: Machine) -> bool:
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
