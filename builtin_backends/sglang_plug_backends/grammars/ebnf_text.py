"""Trees of EBNF grammars as text."""

from __future__ import annotations

from .characters import Characters, literal
from .ebnf import Either, Name, Node, OneOf, Parts, Repeat, Rules, Text


def rules_to_ebnf(rules: Rules) -> str:
    """A line for each rule."""
    return "".join(f"{name} ::= {_write(body)}\n" for name, body in rules.items())


def _write(node: Node, within: bool = False) -> str:
    """``within``: beside others, or to be repeated."""
    match node:
        case Text():
            return literal(node.text)
        case OneOf():
            characters = Characters(node.ranges)
            return (~characters if node.negated else characters).ebnf()
        case Name():
            return node.name
        case Parts():
            found = " ".join(_write(one, True) for one in node.parts)
        case Either():
            found = " | ".join(_write(one, not isinstance(one, Parts)) for one in node.branches)
        case Repeat():
            most = "" if node.most is None else node.most
            body = _write(node.body, True)
            return f"{body}*" if (node.least, node.most) == (0, None) else f"{body}{{{node.least},{most}}}"
    return f"({found})" if within else found
