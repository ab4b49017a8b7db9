"""Which grammars may be asked what must come next.

xgrammar follows a forced text to its end, however far that is: to no end where a rule has no text that ends, and for
minutes, with gigabytes, where the shortest has billions of characters. No forced text is longer than the shortest way
to the end of everything that is open, which is what is bounded here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_plug_backends.grammars.ebnf import (
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
from sglang_plug_backends.grammars.rule_graph import leading_to_loops, reverse, settled

MOST_FORCED = 1 << 14
"""Characters of the shortest text of any part."""
MOST_IN_LOOP = 1 << 8
"""The same in rules that contain themselves: of those, thousands may be open."""
ENDLESS = 1 << 62


def is_soon_over(source: str) -> bool:
    """True if no text that the grammar ``source`` forces is long. Of what cannot be read nothing is known."""
    try:
        rules = read_ebnf(source)
        shortest = _shortest(rules)
        loops = _loops(rules)
        return all(
            _length(rules[name], shortest)[1] <= (MOST_IN_LOOP if name in loops else MOST_FORCED) for name in shortest
        )
    except (EbnfError, RecursionError):
        return False


def is_tag_soon_over(tag: str) -> bool:
    """The same for all grammars of a prepared structural tag, which is as long as it is written besides."""
    return len(tag) <= MOST_FORCED and all(map(is_soon_over, _grammars(json.loads(tag))))


def _grammars(form: Any) -> Iterator[str]:
    if isinstance(form, dict) and form.get("type") == "grammar":
        yield form["grammar"]
    for one in form.values() if isinstance(form, dict) else form if isinstance(form, list) else ():
        yield from _grammars(one)


def _shortest(rules: Rules) -> dict[str, int]:
    """Characters of the shortest text of each rule that ``root`` leads to."""
    uses = uses_of({name: rules[name] for name in reversed(reachable(rules))})
    return settled(uses, ENDLESS, lambda name, shortest: _length(rules[name], shortest)[0])


def _length(node: Node, shortest: Mapping[str, int]) -> tuple[int, int]:
    """Characters of the shortest text of a part, and of that part in it whose shortest is the longest."""
    inner = [_length(one, shortest) for one in children(node)]
    lengths = [length for length, _ in inner]
    match node:
        case Text():
            found = len(node.text)
        case OneOf():
            found = 1
        case Name():
            found = shortest[node.name]
        case Parts():
            found = sum(lengths)
        case Either():
            found = min(lengths)
        case Repeat():
            found = node.least * lengths[0]
    found = min(found, ENDLESS)
    return found, max([found, *(longest for _, longest in inner)])


def _loops(rules: Rules) -> set[str]:
    """Rules that contain themselves, and those between two such."""
    uses = uses_of(rules)
    return leading_to_loops(uses) & leading_to_loops(reverse(uses))
