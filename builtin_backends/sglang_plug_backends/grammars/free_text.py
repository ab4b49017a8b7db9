"""Text in which some texts do not stand, or which does not begin in some way, as an EBNF grammar.

Each state of an automaton that looks for what is forbidden becomes a rule. One rule may then be left for another one
only at the end of the text, which parsers follow in constant time, whatever has been written before.
"""

from __future__ import annotations

from collections.abc import Sequence

from .automaton import Machine, Ranges
from .characters import ALL, Characters
from .ebnf import EbnfError, Either, Node, OneOf, Parts, Repeat, Text, read_ebnf
from .refusal import Refusal
from .regex import regex_to_ebnf

MOST_STATES = 4000
Place = frozenset[int]
"""States of the machine in which a text may be."""


def free_text(excludes: Sequence[str], not_beginning: str = "") -> str:
    """The grammar of all texts but some.

    Args:
        excludes: what stands nowhere in the text.
        not_beginning: regular expression; the text has no beginning that matches it. Empty: any beginning.

    Raises ``Refusal`` if that leaves no text, not even an empty one, or is too large.
    """
    machine = Machine({}, MOST_STATES)
    forbidden = _forbidden(excludes, not_beginning)
    if forbidden is None:
        return f"root ::= {ALL.ebnf()}*\n"
    if not machine.add(forbidden):
        raise Refusal(f"what a text must not have in it is too large: at most {MOST_STATES} characters")
    first: Place = frozenset(machine.start)
    if machine.end in first:
        raise Refusal("a text cannot be without an empty text in it")
    names: dict[Place, str] = {first: "root"}
    lines = []
    for place in (order := [first]):
        branches = ['""']
        for after, characters in _ways(machine, place).items():
            if after not in names:
                names[after] = f"t{len(names)}"
                order.append(after)
            branches.append(f"{characters.ebnf()} {names[after]}")
        lines.append(f"{names[place]} ::= {' | '.join(branches)}\n")
    return "".join(lines)


def _forbidden(excludes: Sequence[str], not_beginning: str) -> Node | None:
    found: list[Node] = []
    if excludes:
        anything = Repeat(OneOf(ALL.ranges), 0, None)
        found.append(Parts((anything, Either(tuple(Text(one) for one in excludes)))))
    if not_beginning:
        try:
            found.append(read_ebnf(f"root ::= {regex_to_ebnf(not_beginning)}")["root"])
        except EbnfError as error:
            raise Refusal(str(error)) from None
    return Either(tuple(found)) if found else None


def _ways(machine: Machine, place: Place) -> dict[Place, Characters]:
    """Where the next character leads, as long as nothing forbidden is complete with it."""
    steps = [(Characters(ranges), after) for state in place for ranges, after in machine.steps.get(state, ())]
    found: dict[Place, list[Ranges]] = {}
    for part in _parts([characters for characters, _ in steps]):
        probe = chr(part.ranges[0][0])
        after = frozenset(state for characters, next in steps if probe in characters for state in machine.reached(next))
        if machine.end not in after:
            found.setdefault(after, []).append(part.ranges)
    return {after: Characters(one for ranges in many for one in ranges) for after, many in found.items()}


def _parts(sets: Sequence[Characters]) -> list[Characters]:
    """All characters, taken apart so that each of ``sets`` holds all of a part or nothing of it."""
    parts = [ALL]
    for one in sets:
        parts = [half for part in parts for half in (part & one, part - one) if half]
    return parts
