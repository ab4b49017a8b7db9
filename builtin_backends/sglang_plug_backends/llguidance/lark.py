"""Conversion of EBNF grammars to llguidance's notation."""

from __future__ import annotations

from sglang_plug_backends.grammars.ebnf.rule_graph import leading_to_loops
from sglang_plug_backends.grammars.ebnf.to_regex import class_regex, rules_to_regex, text_regex
from sglang_plug_backends.grammars.ebnf.tree import (
    EbnfError,
    Either,
    Name,
    Node,
    OneOf,
    Parts,
    Repeat,
    Rules,
    Text,
    reachable,
    uses_of,
)

from .lexemes import Lexemes

MAX_CHARACTERS = 1 << 20
EMPTY = '""'


def rules_to_lark(rules: Rules, prefix: str = "") -> str:
    """Write a grammar for the rule ``root``.

    Without recursion it is one expression. ``prefix``: prepended to the rule names. Raises ``EbnfError``.
    """
    within = leading_to_loops(uses_of(rules))
    if "root" not in within:
        return f"{prefix}start: /{rules_to_regex(rules)}/\n"
    writer = _Writer(rules, prefix)
    lines = [writer.line(name) for name in writer.order if name in within or not writer.is_token(name)]
    if sum(map(len, lines)) > MAX_CHARACTERS:
        raise EbnfError(f"the grammar would have more than {MAX_CHARACTERS} characters")
    return "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, rules: Rules, prefix: str) -> None:
        reached = reachable(rules)
        self._rules, self._lexemes = rules, Lexemes(rules, reached)
        self.order = {name: f"{prefix}r{index}" if index else f"{prefix}start" for index, name in enumerate(reached)}

    def is_token(self, name: str) -> bool:
        """Return whether the rule is inlined."""
        return self._lexemes.is_token(Name(name))

    def line(self, name: str) -> str:
        """Write one rule."""
        return f"{self.order[name]}: {self._write(self._rules[name])}"

    def _write(self, node: Node) -> str:
        if node == Text(""):
            return EMPTY
        if self._lexemes.is_token(node):
            return f"/{rules_to_regex({**self._rules, 'root': node})}/"
        match node:
            case Text():
                return " ".join(f"/{text_regex(item)}/" for item in node.text)
            case OneOf():
                return f"/{class_regex(node)}/"
            case Name():
                return self.order[node.name]
            case Parts():
                return " ".join(map(self._write, node.parts))
            case Either():
                return f"({' | '.join(map(self._write, node.branches))})"
            case Repeat():
                maximum = "" if node.maximum is None else node.maximum
                return f"({self._write(node.body)}){{{node.minimum},{maximum}}}"
