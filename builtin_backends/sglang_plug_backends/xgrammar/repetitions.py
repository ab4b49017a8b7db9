"""Rewriting of repetitions as right recursion, for which xgrammar fills masks many times faster.

xgrammar precomputes which tokens each position of a rule allows, except for tokens that reach beyond the rule's end,
which it tries anew in every step. It makes a repetition of anything but one character a rule of its own, whose end
nearly every token reaches beyond: inside a JSON string a mask took 50 ms. Written as ``loop ::= rest | part loop`` it
ends where the text after the repetition ends, and the same mask takes 5 µs.

More than 128 repetitions of a character are a chain of rules of at most 128 each: for more, xgrammar 0.2.8 fills masks
with tokens that its matcher then rejects (the closing quote of a string before its minimum length, for example).
"""

from __future__ import annotations

from collections.abc import Iterator

from sglang_plug_backends.grammars.ebnf.characters import Characters
from sglang_plug_backends.grammars.ebnf.to_text import rules_to_ebnf
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
    made_of,
    mapped,
    read_ebnf,
    rules_made_of,
)

MAX_TIMES = 64
"""Maximum repetitions of one character that are written out. More take too long to compile."""
MAX_TOGETHER, BLOCK = 16, 4
"""Maximum repetitions in one rule, and the size of rules beyond."""
MAX_SIZE = 128
"""Maximum parts of a short repetition of other expressions that is written out."""
MAX_WRITTEN = 1024
"""Maximum parts of all short repetitions of a grammar."""
MAX_AT_ONCE = 128
"""Maximum repetitions of a character for which xgrammar's masks are right."""
MAX_LINKS = 1 << 13
"""Maximum links of the chains of one grammar.

Repetitions beyond stay unchanged; tokens that their masks allow wrongly are rejected by the matcher and sampled again.
"""
MAX_COPIED = 8
"""Maximum parts after a short repetition that are copied; larger ones become a rule, which costs time."""
NOTHING = Text("")


def with_recursion(source: str) -> str:
    """Rewrite repetitions of the grammar ``source`` as recursion. Unreadable or too long parts stay unchanged."""
    try:
        rules = read_ebnf(source)
        if not any(isinstance(item, Repeat) for body in rules.values() for item in _all(body)):
            return source
        return rules_to_ebnf(_Writer(rules).written())
    except (EbnfError, RecursionError):
        return source


class _Writer:
    def __init__(self, rules: Rules) -> None:
        rules = {name: mapped(body, _merged) for name, body in rules.items()}
        self._rules = rules = {name: mapped(body, _counted_apart) for name, body in rules.items()}
        self._nullable = rules_made_of(rules, _is_nothing)
        self._made: Rules = {}
        self._known: dict[tuple[Repeat, tuple[Node, ...]], Node] = {}
        self._size_left, self._links_left = MAX_WRITTEN, MAX_LINKS

    def written(self) -> Rules:
        """Return all rules."""
        results = {name: self._ending([body]) for name, body in self._rules.items()}
        # a rule that is only a loop becomes the loop: the end of an enclosing rule would cost time
        whole = {
            body.name: name for name, body in results.items() if isinstance(body, Name) and body.name in self._made
        }
        results = {**results, **{whole.get(name, name): body for name, body in self._made.items()}}

        def renamed(node: Node) -> Node:
            return Name(whole.get(node.name, node.name)) if isinstance(node, Name) else node

        return {name: mapped(body, renamed) for name, body in results.items()}

    def _ending(self, parts: list[Node]) -> Node:
        """Write a concatenation of ``parts`` at the end of a rule."""
        parts = list(_flat(parts))
        for at, part in enumerate(parts):
            if isinstance(part, Repeat) and self._is_slow(part):
                repeated = self._repeated(part, parts[at + 1 :])  # before other parts use up the limit
                return _joined([*map(self._within, parts[:at]), repeated])
        last = parts[-1] if parts else NOTHING
        if isinstance(last, Either):
            last = Either(tuple(self._ending([branch]) for branch in last.branches))
        elif isinstance(last, Repeat):
            last = self._within(last)
        return _joined([*map(self._within, parts[:-1]), last])

    def _within(self, part: Node) -> Node:
        """Write a part that others follow."""
        match part:
            case Either():
                return Either(tuple(self._ending([branch]) for branch in part.branches))
            case Repeat() if self._needs_chain(part):
                return self._ending([part])
            case Repeat():
                return Repeat(self._within(part.body), part.minimum, part.maximum)
            case Parts():
                return self._ending([part])
        return part

    def _is_slow(self, part: Repeat) -> bool:
        """Return True if ``part`` has a faster form that is not too long."""
        if self._needs_chain(part):
            return True
        if made_of(part.body, _is_nothing, self._nullable):
            return False  # it would recurse without consuming text
        is_character = isinstance(part.body, OneOf)
        if part.maximum is None:
            return not is_character and part.minimum * self._size(part.body) <= MAX_SIZE
        size = self._size(part)
        return size <= self._size_left and (part.maximum <= MAX_TIMES if is_character else size <= MAX_SIZE)

    def _repeated(self, part: Repeat, continuation: list[Node]) -> Node:
        """Return ``part`` and its continuation up to the end of the rule; equal expressions share one rule."""
        key = part, tuple(continuation)
        if key not in self._known:
            if self._needs_chain(part):
                written = self._chain(part, continuation)
            elif part.maximum is None:
                written = self._endless(part, continuation)
            else:
                written = self._counted(part, part.maximum, continuation)
            self._known[key] = written
        return self._known[key]

    def _needs_chain(self, part: Repeat) -> bool:
        """Return True if xgrammar would fill wrong masks for ``part`` and a chain fits into the limits."""
        count = part.minimum if part.maximum is None else part.maximum
        if count <= MAX_AT_ONCE or _links(part) > self._links_left:
            return False
        return _as_class(part.body, self._rules) is not None

    def _chain(self, part: Repeat, continuation: list[Node]) -> Node:
        """Write ``part``, a character, and its continuation in links of at most ``MAX_AT_ONCE``.

        The required characters come first. Then each link either continues after all of its characters, or has fewer of
        them and ends the repetition, so that every text has one derivation.
        """
        character = _as_class(part.body, self._rules)
        assert character is not None
        self._links_left -= _links(part)
        after = self._short(self._ending(continuation))
        optional = 0 if part.maximum is None else part.maximum - part.minimum
        size = _link_size(optional)
        if part.maximum is None:
            following = _joined([Repeat(character, 0, None), after])
        elif optional <= MAX_AT_ONCE:
            following = _joined([_times(character, 0, optional), after])
        else:
            following = after
            for _ in range(optional // size):
                following = self._link(character, size, after, following)
            if optional % size:
                following = self._link(character, optional % size, after, following)
        must = [Repeat(character, size, size)] * (part.minimum // size) + [
            _times(character, part.minimum % size, part.minimum % size)
        ]
        return _joined([*must, following])

    def _link(self, character: OneOf, size: int, after: Node, following: Node) -> Name:
        """Create a rule for ``size`` times ``character`` and ``following``, or fewer and ``after``."""
        name = self._new()
        fewer = _joined([_times(character, 0, size - 1), after])
        self._make(name, _either([fewer, _joined([_times(character, size, size), following])]))
        return name

    def _endless(self, part: Repeat, continuation: list[Node]) -> Node:
        loop = self._new()
        again: list[Node] = [self._ending([branch, loop]) for branch in self._branches(part.body)]
        self._make(loop, _either([self._ending(continuation), *again]))
        if not part.minimum:
            return loop
        first = self._new()
        self._make(first, _either(again))
        return _joined([part.body] * (part.minimum - 1) + [first])

    def _counted(self, part: Repeat, maximum: int, continuation: list[Node]) -> Node:
        self._size_left -= self._size(part)
        after = self._short(self._ending(continuation))
        if isinstance(part.body, OneOf):
            return self._characters(part.body, part.minimum, maximum, after)
        result: Node = after
        for times in reversed(range(maximum)):
            branches = [self._ending([branch, result]) for branch in self._branches(part.body)]
            result = self._new()
            self._make(result, _either([after, *branches] if times >= part.minimum else branches))
        return result

    def _characters(self, character: OneOf, minimum: int, maximum: int, after: Node) -> Node:
        """Write ``minimum`` to ``maximum`` times ``character``, then ``after``."""
        together = maximum if maximum <= MAX_TOGETHER else BLOCK
        characters = after
        for start in reversed(range(0, maximum, together)):
            count = min(together, maximum - start)
            ways = [self._followed([character] * times, after) for times in range(count) if start + times >= minimum]
            body = _either([*ways, self._followed([character] * count, characters)])
            if start == 0:
                return body
            characters = self._new()
            self._make(characters, body)
        return characters

    def _short(self, after: Node) -> Node:
        """Return ``after``, or the name of a rule for it if it is too long to be copied."""
        if self._size(after) <= MAX_COPIED:
            return after
        name = self._new()
        self._make(name, after)
        return name

    @staticmethod
    def _followed(parts: list[Node], after: Node) -> Node:
        """Prepend ``parts`` to each branch of ``after``."""
        return _either(
            [_joined([*parts, branch]) for branch in (after.branches if isinstance(after, Either) else (after,))]
        )

    def _branches(self, body: Node) -> list[Node]:
        """Return the alternatives of ``body``."""
        if isinstance(body, Name) and isinstance(result := self._rules.get(body.name), Either | OneOf):
            body = result
        return (
            [item for branch in body.branches for item in self._branches(branch)]
            if isinstance(body, Either)
            else [body]
        )

    def _size(self, node: Node) -> int:
        """Count the parts of ``node`` with its repetitions written out."""
        times = node.maximum or node.minimum or 1 if isinstance(node, Repeat) else 1
        return 1 + times * sum(map(self._size, children(node)))

    def _new(self) -> Name:
        at = len(self._made)
        while f"loop{at}" in self._made or f"loop{at}" in self._rules:
            at += 1
        name = Name(f"loop{at}")
        self._make(name, NOTHING)  # placeholder until it is written
        return name

    def _make(self, name: Name, body: Node) -> None:
        self._made[name.name] = body
        self._nullable[name.name] = made_of(body, _is_nothing, self._nullable)


def _merged(node: Node) -> Node:
    """Merge a nested repetition if equivalent: as two it is ambiguous and slow."""
    if not isinstance(node, Repeat) or not isinstance(node.body, Repeat) or node.maximum == 0:
        return node
    inner = node.body
    if inner.maximum is None and inner.minimum <= 1:
        return Repeat(inner.body, node.minimum * inner.minimum, None)
    if (inner.minimum, inner.maximum) == (0, 1):
        return Repeat(inner.body, 0, node.maximum)
    return node


def _counted_apart(node: Node) -> Node:
    """Split into a minimum number of repetitions and an unbounded loop of one position."""
    if (
        isinstance(node, Repeat)
        and isinstance(node.body, OneOf)
        and node.maximum is None
        and 0 < node.minimum <= MAX_TIMES
    ):
        return Parts((*[node.body] * node.minimum, Repeat(node.body, 0, None)))
    return node


def _times(character: OneOf, minimum: int, maximum: int) -> Node:
    return Repeat(character, minimum, maximum) if maximum else NOTHING


def _link_size(count: int) -> int:
    """Return the link size for a chain of up to ``count`` characters that leaves few for a separate link.

    Links of one size share what xgrammar compiles for them.
    """
    if count <= MAX_AT_ONCE:
        return MAX_AT_ONCE
    return min(range(MAX_AT_ONCE, MAX_AT_ONCE // 2, -1), key=lambda size: count % size)


def _links(part: Repeat) -> int:
    """Return the maximum number of links of the chain for ``part``."""
    return 2 * (part.minimum if part.maximum is None else part.maximum) // MAX_AT_ONCE


def _as_class(node: Node, rules: Rules, within: frozenset[str] = frozenset()) -> OneOf | None:
    """Return the character class equivalent to ``node``, resolving rules; ``None`` if there is none.

    xgrammar sees through rules and alternatives, too, when it looks for repeated parts.
    """
    match node:
        case OneOf():
            return node
        case Text() if len(node.text) == 1:
            return OneOf(((ord(node.text), ord(node.text)),))
        case Name() if node.name in rules and node.name not in within:
            return _as_class(rules[node.name], rules, within | {node.name})
        case Parts() if len(node.parts) == 1:
            return _as_class(node.parts[0], rules, within)
        case Either():
            classes = [_as_class(branch, rules, within) for branch in node.branches]
            result = Characters()
            for item in classes:
                if item is None:
                    return None
                result |= ~Characters(item.ranges) if item.negated else Characters(item.ranges)
            return OneOf(result.ranges)
    return None


def _all(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _all(child)


def _flat(parts: list[Node]) -> Iterator[Node]:
    for part in parts:
        if isinstance(part, Parts):
            yield from _flat(list(part.parts))
        elif part != NOTHING:
            yield part


def _joined(parts: list[Node]) -> Node:
    result = tuple(_flat(parts))
    return result[0] if len(result) == 1 else Parts(result) if result else NOTHING


def _either(branches: list[Node]) -> Node:
    results = [item for branch in branches for item in (branch.branches if isinstance(branch, Either) else (branch,))]
    results = list(dict.fromkeys(results))
    return results[0] if len(results) == 1 else Either(tuple(results))


def _is_nothing(leaf: Node) -> bool:
    return leaf == NOTHING
