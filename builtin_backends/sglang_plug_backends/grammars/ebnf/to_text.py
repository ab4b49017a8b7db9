"""Conversion of EBNF trees to text."""

from __future__ import annotations

from .characters import Characters, literal
from .tree import Either, Name, Node, OneOf, Parts, Repeat, Rules, Text


def rules_to_ebnf(rules: Rules) -> str:
    """Write one line for each rule."""
    return "".join(f"{name} ::= {_write(body)}\n" for name, body in rules.items())


def _write(node: Node, within: bool = False) -> str:
    """Write a node; ``within``: the context is a concatenation or repetition."""
    match node:
        case Text():
            return literal(node.text)
        case OneOf():
            characters = Characters(node.ranges)
            return (~characters if node.negated else characters).ebnf()
        case Name():
            return node.name
        case Parts():
            result = " ".join(_write(part, True) for part in node.parts)
        case Either():
            result = " | ".join(_write(branch, not isinstance(branch, Parts)) for branch in node.branches)
        case Repeat():
            maximum = "" if node.maximum is None else node.maximum
            body = _write(node.body, True)
            if isinstance(node.body, Repeat):
                body = f"({body})"  # xgrammar does not parse a quantifier after a quantifier
            return f"{body}*" if (node.minimum, node.maximum) == (0, None) else f"{body}{{{node.minimum},{maximum}}}"
    return f"({result})" if within else result
