"""Repetitions as right recursion, for which xgrammar fills masks many times faster.

xgrammar decides when it compiles which tokens each place of a rule allows, except for those that reach beyond the
rule's end: these it tries anew in every step. A repetition of anything but one character is a rule of its own to it,
whose end nearly every token reaches beyond: inside a JSON string a mask took 50 ms. Written as
``loop ::= rest | part loop`` it ends where what follows the repetition ends, and the same mask takes 5 µs.
"""

from __future__ import annotations

from collections.abc import Iterator

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
    made_of,
    mapped,
    read_ebnf,
    rules_made_of,
)
from sglang_plug_backends.grammars.ebnf_text import rules_to_ebnf

MOST_TIMES = 64
"""A repetition of one character with at most so many of them is written out. More take too long to compile."""
MOST_TOGETHER, BLOCK = 16, 4
"""Up to so many of them in one rule, else rules of ``BLOCK``."""
MOST_SIZE = 128
"""Parts that a short repetition of anything else may take when it is written out."""
MOST_WRITTEN = 1024
"""Parts of all short repetitions of a grammar."""
MOST_COPIED = 8
"""Parts that may follow each way of writing a short repetition; more become a rule of their own, which costs time."""
NOTHING = Text("")


def with_recursion(source: str) -> str:
    """The grammar ``source``, with repetitions as recursion. What cannot be read, or is too long, stays as it is."""
    try:
        rules = read_ebnf(source)
        if not any(isinstance(one, Repeat) for body in rules.values() for one in _all(body)):
            return source
        return rules_to_ebnf(_Writer(rules).written())
    except (EbnfError, RecursionError):
        return source


class _Writer:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules = {name: mapped(body, _counted_apart) for name, body in rules.items()}
        self._nullable = rules_made_of(rules, _is_nothing)
        self._made: Rules = {}
        self._known: dict[tuple[Repeat, tuple[Node, ...]], Node] = {}
        self._left = MOST_WRITTEN

    def written(self) -> Rules:
        """All rules."""
        found = {name: self._ending([body]) for name, body in self._rules.items()}
        # a rule that is nothing but a loop becomes the loop: one more end, of a rule around it, would cost time
        whole = {body.name: name for name, body in found.items() if isinstance(body, Name) and body.name in self._made}
        found = {**found, **{whole.get(name, name): body for name, body in self._made.items()}}

        def renamed(node: Node) -> Node:
            return Name(whole.get(node.name, node.name)) if isinstance(node, Name) else node

        return {name: mapped(body, renamed) for name, body in found.items()}

    def _ending(self, parts: list[Node]) -> Node:
        """``parts`` one after the other, at the end of a rule."""
        parts = list(_flat(parts))
        for at, part in enumerate(parts):
            if isinstance(part, Repeat) and self._is_slow(part):
                return _joined([*map(self._within, parts[:at]), self._repeated(part, parts[at + 1 :])])
        last = parts[-1] if parts else NOTHING
        if isinstance(last, Either):
            last = Either(tuple(self._ending([one]) for one in last.branches))
        return _joined([*map(self._within, parts[:-1]), last])

    def _within(self, part: Node) -> Node:
        """A part that others follow."""
        match part:
            case Either():
                return Either(tuple(self._ending([one]) for one in part.branches))
            case Repeat():
                return Repeat(self._within(part.body), part.least, part.most)
            case Parts():
                return self._ending([part])
        return part

    def _is_slow(self, part: Repeat) -> bool:
        """True if ``part`` can be written in a way that is better, and not too long."""
        if made_of(part.body, _is_nothing, self._nullable):
            return False  # it would be recursion without a text
        one = isinstance(part.body, OneOf)
        if part.most is None:
            return not one and part.least * self._size(part.body) <= MOST_SIZE
        size = self._size(part)
        return size <= self._left and (part.most <= MOST_TIMES if one else size <= MOST_SIZE)

    def _repeated(self, part: Repeat, rest: list[Node]) -> Node:
        """``part`` and what follows it, up to the end of the rule; the same for every place where the same stands."""
        place = part, tuple(rest)
        if place not in self._known:
            self._known[place] = (
                self._endless(part, rest) if part.most is None else self._counted(part, part.most, rest)
            )
        return self._known[place]

    def _endless(self, part: Repeat, rest: list[Node]) -> Node:
        loop = self._new()
        again: list[Node] = [self._ending([one, loop]) for one in self._branches(part.body)]
        self._make(loop, _either([self._ending(rest), *again]))
        if not part.least:
            return loop
        first = self._new()
        self._make(first, _either(again))
        return _joined([part.body] * (part.least - 1) + [first])

    def _counted(self, part: Repeat, most: int, rest: list[Node]) -> Node:
        self._left -= self._size(part)
        after = self._ending(rest)
        if self._size(after) > MOST_COPIED:
            name = self._new()
            self._make(name, after)
            after = name
        if isinstance(part.body, OneOf):
            return self._characters(part.body, part.least, most, after)
        found: Node = after
        for times in reversed(range(most)):
            branches = [self._ending([one, found]) for one in self._branches(part.body)]
            found = self._new()
            self._make(found, _either([after, *branches] if times >= part.least else branches))
        return found

    def _characters(self, one: OneOf, least: int, most: int, after: Node) -> Node:
        """From ``least`` to ``most`` times ``one``, then ``after``."""
        together = most if most <= MOST_TOGETHER else BLOCK
        found = after
        for start in reversed(range(0, most, together)):
            count = min(together, most - start)
            ways = [self._followed([one] * times, after) for times in range(count) if start + times >= least]
            body = _either([*ways, self._followed([one] * count, found)])
            if start == 0:
                return body
            found = self._new()
            self._make(found, body)
        return found

    @staticmethod
    def _followed(parts: list[Node], after: Node) -> Node:
        """``parts`` before each branch of ``after``."""
        return _either([_joined([*parts, one]) for one in (after.branches if isinstance(after, Either) else (after,))])

    def _branches(self, body: Node) -> list[Node]:
        """What ``body`` may be one of."""
        if isinstance(body, Name) and isinstance(found := self._rules.get(body.name), Either | OneOf):
            body = found
        return (
            [one for branch in body.branches for one in self._branches(branch)] if isinstance(body, Either) else [body]
        )

    def _size(self, node: Node) -> int:
        """Parts of ``node`` once its repetitions are written out."""
        times = node.most or node.least or 1 if isinstance(node, Repeat) else 1
        return 1 + times * sum(map(self._size, children(node)))

    def _new(self) -> Name:
        at = len(self._made)
        while f"loop{at}" in self._made or f"loop{at}" in self._rules:
            at += 1
        name = Name(f"loop{at}")
        self._make(name, NOTHING)  # until it is written
        return name

    def _make(self, name: Name, body: Node) -> None:
        self._made[name.name] = body
        self._nullable[name.name] = made_of(body, _is_nothing, self._nullable)


def _counted_apart(node: Node) -> Node:
    """At least so many of a class as these, and then any number, which is a loop of one place."""
    if isinstance(node, Repeat) and isinstance(node.body, OneOf) and node.most is None and 0 < node.least <= MOST_TIMES:
        return Parts((*[node.body] * node.least, Repeat(node.body, 0, None)))
    return node


def _all(node: Node) -> Iterator[Node]:
    yield node
    for one in children(node):
        yield from _all(one)


def _flat(parts: list[Node]) -> Iterator[Node]:
    for one in parts:
        if isinstance(one, Parts):
            yield from _flat(list(one.parts))
        elif one != NOTHING:
            yield one


def _joined(parts: list[Node]) -> Node:
    found = tuple(_flat(parts))
    return found[0] if len(found) == 1 else Parts(found) if found else NOTHING


def _either(branches: list[Node]) -> Node:
    found = [one for branch in branches for one in (branch.branches if isinstance(branch, Either) else (branch,))]
    found = list(dict.fromkeys(found))
    return found[0] if len(found) == 1 else Either(tuple(found))


def _is_nothing(leaf: Node) -> bool:
    return leaf == NOTHING
