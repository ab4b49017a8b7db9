"""Detection of grammars that can be asked safely for forced text.

xgrammar follows a forced text to its end: forever if a rule has no text that ends, and for minutes, with gigabytes, if
the shortest has billions of characters. No forced text is longer than the shortest completion of everything that is
open, which is bounded here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_plug_backends.grammars.ebnf.rule_graph import leading_to_loops, reverse, settled
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
    children,
    reachable,
    read_ebnf,
    uses_of,
)

MAX_FORCED = 1 << 14
"""Maximum characters of the shortest text of any part."""
MAX_FORCED_IN_LOOP = 1 << 8
"""The same limit for recursive rules, thousands of which may be open."""
ENDLESS = 1 << 62


def forces_only_short_text(source: str) -> bool:
    """Return True if no text that the grammar ``source`` forces is long; False for unreadable grammars."""
    try:
        rules = read_ebnf(source)
        shortest = _shortest(rules)
        loops = _loops(rules)
        return all(
            _length(rules[name], shortest)[1] <= (MAX_FORCED_IN_LOOP if name in loops else MAX_FORCED)
            for name in shortest
        )
    except (EbnfError, RecursionError):
        return False


def tag_forces_only_short_text(tag: str) -> bool:
    """Return True if all grammars of a prepared structural tag and its own literal texts are short."""
    return len(tag) <= MAX_FORCED and all(map(forces_only_short_text, _grammars(json.loads(tag))))


def _grammars(form: Any) -> Iterator[str]:
    if isinstance(form, dict) and form.get("type") == "grammar":
        yield form["grammar"]
    for item in form.values() if isinstance(form, dict) else form if isinstance(form, list) else ():
        yield from _grammars(item)


def _shortest(rules: Rules) -> dict[str, int]:
    """Return the length in characters of the shortest text of each rule reachable from ``root``."""
    uses = uses_of({name: rules[name] for name in reversed(reachable(rules))})
    return settled(uses, ENDLESS, lambda name, shortest: _length(rules[name], shortest)[0])


def _length(node: Node, shortest: Mapping[str, int]) -> tuple[int, int]:
    """Return the length of a part's shortest text, and the longest such length among its parts."""
    inner = [_length(child, shortest) for child in children(node)]
    lengths = [length for length, _ in inner]
    match node:
        case Text():
            result = len(node.text)
        case OneOf():
            result = 1
        case Name():
            result = shortest[node.name]
        case Parts():
            result = sum(lengths)
        case Either():
            result = min(lengths)
        case Repeat():
            result = node.minimum * lengths[0]
    result = min(result, ENDLESS)
    return result, max([result, *(longest for _, longest in inner)])


def _loops(rules: Rules) -> set[str]:
    """Return recursive rules, and the rules between two such."""
    uses = uses_of(rules)
    return leading_to_loops(uses) & leading_to_loops(reverse(uses))
