"""Selection of the parts of a recursive grammar that become tokens of llguidance's parser.

Its lexer takes the longest token that matches, even where the rest of a rule then cannot follow. So no token may be a
prefix of another one or of itself. Other parts are split, down to single characters.
"""

from __future__ import annotations

from collections.abc import Iterable

from sglang_plug_backends.grammars.ebnf.automaton import Machine, Ranges
from sglang_plug_backends.grammars.ebnf.rule_graph import leading_to_loops
from sglang_plug_backends.grammars.ebnf.tree import Name, Node, Rules, Text, children, names, uses_of

MAX_STATES = 400
"""Maximum states of one token; larger parts are split."""
MAX_PAIRS = 200_000
"""Maximum pairs of states examined for one grammar; beyond, every character is a token of its own."""


class Lexemes:
    """The parts of ``rules`` that are tokens."""

    def __init__(self, rules: Rules, reached: Iterable[str]) -> None:
        self._rules, self._recursive = rules, leading_to_loops(uses_of(rules))
        self._apart = set[Node]()
        self._pairs = 0
        bodies = [rules[name] for name in reached if name in self._recursive]
        while result := self._conflicts(self._collect(bodies)):
            self._apart |= result

    def is_token(self, node: Node) -> bool:
        """Return whether ``node`` is one token."""
        return node not in self._apart and not any(name in self._recursive for name in names(node))

    def _collect(self, bodies: Iterable[Node]) -> dict[Node, Machine]:
        results: dict[Node, Machine] = {}
        open_ = list(bodies)
        while open_:
            node = open_.pop()
            if node in results or (isinstance(node, Name) and node.name in self._recursive):
                continue
            if self.is_token(node):
                machine = Machine(self._rules, MAX_STATES)
                if machine.add(node):
                    results[node] = machine
                    continue
                self._apart.add(node)
            open_ += self._inside(node)
        return results

    def _inside(self, node: Node) -> list[Node]:
        """Return the children of ``node``."""
        if isinstance(node, Name):
            return [self._rules[node.name]]
        if isinstance(node, Text):
            return [Text(item) for item in node.text] if len(node.text) > 1 else []
        return list(children(node))

    def _conflicts(self, machines: dict[Node, Machine]) -> set[Node]:
        """Return tokens that are a prefix of another token or of themselves."""
        wrong = {node for node, machine in machines.items() if machine.can_be_empty and node != Text("")}
        for longer, machine in machines.items():
            if longer not in wrong and any(self._is_beginning(other, machine) for other in machines.values()):
                wrong.add(longer)
        return wrong

    def _is_beginning(self, short: Machine, longer: Machine) -> bool:
        """Return whether a text of ``short`` can continue to a text of ``longer``."""
        open_ = {(item, other) for item in short.start for other in longer.start}
        visited = set(open_)
        while open_:
            state, other = open_.pop()
            if state == short.end and other != longer.end:
                return True
            self._pairs += 1
            if self._pairs > MAX_PAIRS:
                return len(longer.steps) > 2
            for ranges, after in short.steps.get(state, ()):
                for others, following in longer.steps.get(other, ()):
                    if _meet(ranges, others):
                        new = {(a, b) for a in short.reached(after) for b in longer.reached(following)} - visited
                        visited |= new
                        open_ |= new
        return False


def _meet(ranges: Ranges, other: Ranges) -> bool:
    return any(first <= end and start <= last for first, last in ranges for start, end in other)
