"""JSON values of any kind with bounded depth, since a regular expression cannot nest without end."""

from __future__ import annotations

from functools import partial

from sglang_plug_backends.grammars.ebnf.tree import Either, Name, Node, Rules, Text, mapped, names

ANY = "any"
"""Rule of the schema converter for any JSON value; the only rule that refers to itself without the schema saying so."""
INNERMOST = Either((Text("{}"), Text("[]")))
"""The containers in the innermost values."""


def with_bounded_values(rules: Rules, depth: int) -> Rules:
    """Return ``rules`` with copies of the rule for any JSON value instead of the rule itself.

    A value holds others at most ``depth`` levels deep; the containers of the innermost ones are empty.
    """
    if ANY not in rules:
        return rules
    inside = {name for name in _reachable(rules, ANY) if ANY in _reachable(rules, name)}
    result = {name: mapped(body, partial(_renamed, inside={ANY}, level=depth)) for name, body in rules.items()}
    for level in range(1, depth + 1):
        for name in inside:
            result[_name(name, level)] = mapped(rules[name], partial(_inner, inside=inside, level=level))
    result[_name(ANY, 0)] = _innermost(rules[ANY], inside)
    return {name: body for name, body in result.items() if name not in inside}


def _renamed(node: Node, inside: set[str], level: int) -> Node:
    return Name(_name(node.name, level)) if isinstance(node, Name) and node.name in inside else node


def _inner(node: Node, inside: set[str], level: int) -> Node:
    """Rename a reference within a value of ``level``: the values in it are one level deeper."""
    return _renamed(node, inside, level - 1 if node == Name(ANY) else level)


def _name(rule: str, level: int) -> str:
    return f"{rule}-{level}"


def _innermost(body: Node, inside: set[str]) -> Node:
    """Return the alternatives of a value that hold no value, and the empty containers."""
    branches = body.branches if isinstance(body, Either) else (body,)
    return Either((*(branch for branch in branches if not set(names(branch)) & inside), INNERMOST))


def _reachable(rules: Rules, start: str) -> set[str]:
    """Return the rules that ``start`` refers to, directly or not."""
    reachable = set[str]()
    waiting = [start]
    while waiting:
        new = set(names(rules[waiting.pop()])) - reachable
        reachable |= new
        waiting += new
    return reachable
