"""EBNF grammars for text that excludes some texts or some beginnings.

Each state of the automaton that searches for the excluded texts becomes a rule. A rule is left for another one only at
the end of the text, which parsers follow in constant time, however long the text is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sglang_plug_backends.grammars.refusal import Refusal

from .automaton import Machine, Ranges
from .characters import ALL, Characters
from .regex import regex_to_ebnf
from .tree import EbnfError, Either, Node, OneOf, Parts, Repeat, Text, read_ebnf

MAX_STATES = 4000
StateSet = frozenset[int]
"""Set of automaton states that a text may have reached."""


def free_text(excludes: Sequence[str], not_beginning: str = "") -> str:
    """Build the grammar of all texts except some.

    Args:
        excludes: what stands nowhere in the text.
        not_beginning: regular expression; the text has no beginning that matches it. Empty: any beginning.

    Raises ``Refusal`` if that leaves no text, not even an empty one, or is too large.
    """
    return _free_text(tuple(excludes), not_beginning)


@lru_cache(maxsize=32)  # a constraint is prepared when it is checked and when it is compiled, often with equal parts
def _free_text(excludes: tuple[str, ...], not_beginning: str) -> str:
    machine = Machine({}, MAX_STATES)
    forbidden = _forbidden(excludes, not_beginning)
    if forbidden is None:
        return f"root ::= {ALL.ebnf()}*\n"
    if not machine.add(forbidden):
        raise Refusal(f"the excluded texts are too large: at most {MAX_STATES} characters together")
    first: StateSet = frozenset(machine.start)
    if machine.end in first:
        raise Refusal("the empty text cannot be excluded")
    names: dict[StateSet, str] = {first: "root"}
    lines = []
    for states in (order := [first]):
        branches = ['""']
        for after, characters in _ways(machine, states).items():
            if after not in names:
                names[after] = f"t{len(names)}"
                order.append(after)
            branches.append(f"{characters.ebnf()} {names[after]}")
        lines.append(f"{names[states]} ::= {' | '.join(branches)}\n")
    return "".join(lines)


def _forbidden(excludes: Sequence[str], not_beginning: str) -> Node | None:
    results: list[Node] = []
    if excludes:
        anything = Repeat(OneOf(ALL.ranges), 0, None)
        results.append(Parts((anything, Either(tuple(Text(excluded) for excluded in excludes)))))
    if not_beginning:
        try:
            results.append(read_ebnf(f"root ::= {regex_to_ebnf(not_beginning)}")["root"])
        except EbnfError as error:
            raise Refusal(str(error)) from None
    return Either(tuple(results)) if results else None


def _ways(machine: Machine, states: StateSet) -> dict[StateSet, Characters]:
    """Return the transitions by the next character that complete no excluded text."""
    steps = [(Characters(ranges), after) for state in states for ranges, after in machine.steps.get(state, ())]
    results: dict[StateSet, list[Ranges]] = {}
    for part in _parts([characters for characters, _ in steps]):
        probe = chr(part.ranges[0][0])
        after = frozenset(state for characters, next in steps if probe in characters for state in machine.reached(next))
        if machine.end not in after:
            results.setdefault(after, []).append(part.ranges)
    return {after: Characters(item for ranges in many for item in ranges) for after, many in results.items()}


def _parts(sets: Sequence[Characters]) -> list[Characters]:
    """Partition all characters so that each of ``sets`` contains a part entirely or not at all."""
    parts = [ALL]
    for item in sets:
        parts = [half for part in parts for half in (part & item, part - item) if half]
    return parts
