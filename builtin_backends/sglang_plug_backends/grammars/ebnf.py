"""EBNF grammars read into trees, for backends whose libraries have another notation.

The notation is the one that callers of every backend use: ``name ::= "text" [a-z] other ("x" | "y")* {2,3}``, comments
after ``#``, the first rule in the output is ``root``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .rule_graph import settled

MOST_DEPTH = 64
MOST_CHARACTERS = 1 << 20
MOST_REPEATS = 100_000
MOST_CHOICES = 4096
TOKEN = re.compile(
    r"(?P<space>(?:\s|\#[^\n]*)+)"
    r"|(?P<rule>[A-Za-z_][\w.-]*)(?:\s|\#[^\n]*)*::="
    r"|(?P<name>[A-Za-z_][\w.-]*)"
    r'|"(?P<text>(?:[^"\\\n]|\\.)*)"'
    r"|\[(?P<set>\^?(?:[^\]\\\n]|\\.)*)\]"
    r"|\{\s*(?P<least>\d{1,6})\s*(?P<comma>,)?\s*(?P<most>\d{1,6})?\s*\}"
    r"|(?P<sign>[()|*+?])",
    re.ASCII,
)
CHARACTER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
PLAIN = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
SIGNS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LAST = 0x10FFFF


class EbnfError(ValueError):
    """The grammar cannot be read, or not be used; says what stands where."""


@dataclass(frozen=True, slots=True)
class Text:
    """Characters; none of them: nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character from, or outside of, ranges of code points."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """What another rule says."""

    name: str


@dataclass(frozen=True, slots=True)
class Parts:
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same several times; ``most`` ``None``: without end."""

    body: Node
    least: int
    most: int | None


Node = Text | OneOf | Name | Parts | Either | Repeat
Rules = dict[str, Node]


def read_ebnf(source: str) -> Rules:
    """The rules in ``source``, ``root`` among them; every name that is used is there. Raises ``EbnfError``."""
    if len(source) > MOST_CHARACTERS:
        raise EbnfError(f"a grammar has at most {MOST_CHARACTERS} characters, got {len(source)}")
    return _Reader(source).read()


def read_choices(source: str) -> Either:
    """The texts of a JSON list, of which one is to be chosen. Raises ``EbnfError``."""
    try:
        choices = json.loads(source)
        if not isinstance(choices, list) or not choices or not all(isinstance(one, str) for one in choices):
            raise EbnfError("a choice must be a list of texts")
        if len(choices) > MOST_CHOICES:
            raise EbnfError(f"a choice has at most {MOST_CHOICES} texts, got {len(choices)}")
        "".join(choices).encode()
    except (json.JSONDecodeError, RecursionError) as error:
        raise EbnfError(f"a choice must be a JSON list of texts: {error}") from None
    except UnicodeEncodeError:
        raise EbnfError("a choice holds half a surrogate pair") from None
    return Either(tuple(Text(one) for one in dict.fromkeys(choices)))


def children(node: Node) -> tuple[Node, ...]:
    """The parts that ``node`` is made of."""
    match node:
        case Parts():
            return node.parts
        case Either():
            return node.branches
        case Repeat():
            return (node.body,)
    return ()


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """``node`` with all that it is made of changed, the innermost first."""
    match node:
        case Parts():
            node = Parts(tuple(mapped(one, change) for one in node.parts))
        case Either():
            node = Either(tuple(mapped(one, change) for one in node.branches))
        case Repeat():
            node = Repeat(mapped(node.body, change), node.least, node.most)
    return change(node)


def names(node: Node) -> Iterator[str]:
    """Rules that ``node`` refers to."""
    if isinstance(node, Name):
        yield node.name
    for one in children(node):
        yield from names(one)


def uses_of(rules: Rules) -> dict[str, set[str]]:
    """For each rule the rules that it refers to."""
    return {name: set(names(body)) for name, body in rules.items()}


def rules_made_of(rules: Rules, leaf: Callable[[Text | OneOf], bool]) -> dict[str, bool]:
    """For each rule whether it has a finite text of such leaves alone as ``leaf`` is true of."""
    return settled(uses_of(rules), False, lambda name, found: made_of(rules[name], leaf, found))


def made_of(node: Node, leaf: Callable[[Text | OneOf], bool], rules: Mapping[str, bool]) -> bool:
    """Whether ``node`` has a text of such leaves alone as ``leaf`` is true of, given which ``rules`` have one."""
    match node:
        case Name():
            return rules[node.name]
        case Either():
            return any(made_of(one, leaf, rules) for one in node.branches)
        case Parts():
            return all(made_of(one, leaf, rules) for one in node.parts)
        case Repeat():
            return not node.least or made_of(node.body, leaf, rules)
    return leaf(node)


def check_endings(rules: Rules) -> None:
    """Raises ``EbnfError`` if a rule that ``root`` leads to has no finite text."""
    ending = rules_made_of(rules, lambda leaf: True)
    for name in reachable(rules):
        if not ending[name]:
            raise EbnfError(f"the rule {name} has no text that ends")


def reachable(rules: Rules) -> list[str]:
    """Rules that ``root`` leads to, ``root`` first."""
    found, seen = ["root"], {"root"}
    for name in found:
        new = [one for one in dict.fromkeys(names(rules[name])) if one not in seen]
        found += new
        seen.update(new)
    return found


class _Reader:
    def __init__(self, source: str) -> None:
        self._source, self._at, self._depth = source, 0, 0
        self._token: re.Match[str] | None = None
        self._advance()

    def read(self) -> Rules:
        rules: Rules = {}
        while self._token is not None:
            name = self._token["rule"]
            if name is None:
                raise self._error("a rule (name ::= ...) has to stand")
            if name in rules:
                raise self._error(f"the rule {name} is there already")
            self._advance()
            rules[name] = self._either()
            if self._token is not None and self._token["sign"] is not None:
                raise self._error(f"an unexpected {self._token['sign']!r}")
        if "root" not in rules:
            raise EbnfError("the grammar has no rule named root")
        for name, body in rules.items():
            for other in names(body):
                if other not in rules:
                    raise EbnfError(f"the rule {name} refers to {other}, which is not there")
        check_endings(rules)
        return rules

    def _error(self, what: str) -> EbnfError:
        at = self._at if self._token is None else self._token.start()
        return EbnfError(f"the grammar cannot be read: {what} at line {self._source.count(chr(10), 0, at) + 1}")

    def _advance(self) -> None:
        while self._at < len(self._source):
            self._token = TOKEN.match(self._source, self._at)
            if self._token is None:
                raise self._error(f"{self._source[self._at : self._at + 12]!r}")
            self._at = self._token.end()
            if self._token["space"] is None:
                return
        self._token = None

    def _sign(self, signs: str) -> str | None:
        """Take one of ``signs``, if it comes next."""
        if self._token is None or self._token["sign"] is None or self._token["sign"] not in signs:
            return None
        found: str = self._token["sign"]
        self._advance()
        return found

    def _either(self) -> Node:
        branches = [self._parts()]
        while self._sign("|"):
            branches.append(self._parts())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _parts(self) -> Node:
        parts: list[Node] = []
        while (one := self._part()) is not None:
            parts.append(self._repeated(one))
        if not parts:
            raise self._error('nothing (write "")')
        return parts[0] if len(parts) == 1 else Parts(tuple(parts))

    def _part(self) -> Node | None:
        token = self._token
        if token is None or token["rule"] is not None:
            return None
        if self._sign("("):
            return self._group()
        if token["name"] is not None:
            found: Node = Name(token["name"])
        elif token["text"] is not None:
            found = Text("".join(map(chr, self._characters(token["text"]))))
        elif token["set"] is not None:
            found = self._set(token["set"])
        elif token["least"] is not None or token["sign"] in "*+?":
            raise self._error("nothing to repeat")
        else:
            return None
        self._advance()
        return found

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise self._error(f"more than {MOST_DEPTH} nested groups")
        found = self._either()
        self._depth -= 1
        if not self._sign(")"):
            raise self._error("a missing ')'")
        return found

    def _repeated(self, node: Node) -> Node:
        while True:
            if sign := self._sign("*+?"):
                node = Repeat(node, *SIGNS[sign])
            elif self._token is not None and self._token["least"] is not None:
                node = Repeat(node, *self._bounds(self._token))
                self._advance()
            else:
                return node

    def _bounds(self, token: re.Match[str]) -> tuple[int, int | None]:
        least = int(token["least"])
        most = least if token["comma"] is None else None if token["most"] is None else int(token["most"])
        if (token["comma"] is None and token["most"]) or max(least, most or 0) > MOST_REPEATS:
            raise self._error(f"a repetition that is malformed or over {MOST_REPEATS}")
        if most is not None and most < least:
            raise self._error("a repetition out of order")
        return least, most

    def _set(self, inside: str) -> OneOf:
        negated = inside.startswith("^")
        given = list(CHARACTER.finditer(inside, int(negated)))
        codes = [self._code(one) for one in given]
        ranges, at = [], 0
        while at < len(codes):
            is_range = at + 2 < len(codes) and given[at + 1][0] == "-"
            last = codes[at + 2] if is_range else codes[at]
            if last < codes[at]:
                raise self._error("a range out of order")
            ranges.append((codes[at], last))
            at += 3 if is_range else 1
        if not ranges and not negated:
            raise self._error("an empty class")
        return OneOf(tuple(ranges), negated)

    def _characters(self, inside: str) -> list[int]:
        return [self._code(one) for one in CHARACTER.finditer(inside)]

    def _code(self, found: re.Match[str]) -> int:
        """The code point of one character as it is written."""
        number = found[1] or found[2] or found[3]
        if number is None:
            escaped = found[4]
            if escaped is not None and escaped.isalnum() and escaped not in PLAIN:
                raise self._error(f"the escape {found[0]}")
            return ord(found[5] or PLAIN.get(escaped, escaped))
        code = int(number, 16)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"{found[0]}, which is no character")
        return code
