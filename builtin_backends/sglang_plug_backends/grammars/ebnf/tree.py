"""Parser of EBNF grammars for backends whose libraries use another notation.

The notation is the one that callers of every backend use: ``name ::= "text" [a-z] other ("x" | "y")* {2,3}``, comments
after ``#``; the first rule in the output is ``root``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from .rule_graph import settled

MAX_DEPTH = 64
MAX_CHARACTERS = 1 << 20
MAX_REPEATS = 100_000
MAX_CHOICES = 4096
TOKEN = re.compile(
    r"(?P<space>(?:\s|\#[^\n]*)+)"
    r"|(?P<rule>[A-Za-z_][\w.-]*)(?:\s|\#[^\n]*)*::="
    r"|(?P<name>[A-Za-z_][\w.-]*)"
    r'|"(?P<text>(?:[^"\\\n]|\\.)*)"'
    r"|\[(?P<set>\^?(?:[^\]\\\n]|\\.)*)\]"
    r"|\{\s*(?P<minimum>\d{1,6})\s*(?P<comma>,)?\s*(?P<maximum>\d{1,6})?\s*\}"
    r"|(?P<sign>[()|*+?])",
    re.ASCII,
)
CHARACTER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|([^\\])", re.DOTALL)
PLAIN = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
SIGNS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
LAST = 0x10FFFF


class EbnfError(ValueError):
    """The grammar cannot be parsed or used; the message names the location."""


@dataclass(frozen=True, slots=True)
class Text:
    """A literal text, possibly empty."""

    text: str


@dataclass(frozen=True, slots=True)
class OneOf:
    """One character from, or outside of, ranges of code points."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A reference to another rule."""

    name: str


@dataclass(frozen=True, slots=True)
class Parts:
    """A concatenation."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """An alternation."""

    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A repetition; ``maximum`` ``None``: unbounded."""

    body: Node
    minimum: int
    maximum: int | None


Node = Text | OneOf | Name | Parts | Either | Repeat
Rules = dict[str, Node]


def read_ebnf(source: str) -> Rules:
    """Parse the rules in ``source``, which define ``root`` and every name that is used. Raises ``EbnfError``."""
    if len(source) > MAX_CHARACTERS:
        raise EbnfError(f"a grammar has at most {MAX_CHARACTERS} characters, got {len(source)}")
    return _Reader(source).read()


def read_choices(source: str) -> Either:
    """Parse a JSON list of texts, of which one is chosen. Raises ``EbnfError``."""
    try:
        choices = json.loads(source)
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
            raise EbnfError("a choice must be a list of texts")
        if len(choices) > MAX_CHOICES:
            raise EbnfError(f"a choice has at most {MAX_CHOICES} texts, got {len(choices)}")
        "".join(choices).encode()
    except (json.JSONDecodeError, RecursionError) as error:
        raise EbnfError(f"a choice must be a JSON list of texts: {error}") from None
    except UnicodeEncodeError:
        raise EbnfError("a choice holds half a surrogate pair") from None
    return Either(tuple(Text(item) for item in dict.fromkeys(choices)))


def children(node: Node) -> tuple[Node, ...]:
    """Return the direct children of ``node``."""
    match node:
        case Parts():
            return node.parts
        case Either():
            return node.branches
        case Repeat():
            return (node.body,)
    return ()


def mapped(node: Node, change: Callable[[Node], Node]) -> Node:
    """Transform ``node`` and all its descendants, innermost first."""
    match node:
        case Parts():
            node = Parts(tuple(mapped(part, change) for part in node.parts))
        case Either():
            node = Either(tuple(mapped(branch, change) for branch in node.branches))
        case Repeat():
            node = Repeat(mapped(node.body, change), node.minimum, node.maximum)
    return change(node)


def names(node: Node) -> Iterator[str]:
    """Return the rules that ``node`` refers to."""
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, Name):
            yield node.name
        else:
            pending.extend(reversed(children(node)))


def uses_of(rules: Rules) -> dict[str, set[str]]:
    """Return the rules that each rule refers to."""
    return {name: set(names(body)) for name, body in rules.items()}


def rules_made_of(rules: Rules, leaf: Callable[[Text | OneOf], bool]) -> dict[str, bool]:
    """Return for each rule whether it has a finite text made only of leaves that satisfy ``leaf``."""
    return settled(uses_of(rules), False, lambda name, values: made_of(rules[name], leaf, values))


def made_of(node: Node, leaf: Callable[[Text | OneOf], bool], rules: Mapping[str, bool]) -> bool:
    """Return whether ``node`` has a text made only of leaves that satisfy ``leaf``, given the ``rules`` that do."""
    match node:
        case Name():
            return rules[node.name]
        case Either():
            return any(made_of(branch, leaf, rules) for branch in node.branches)
        case Parts():
            return all(made_of(part, leaf, rules) for part in node.parts)
        case Repeat():
            return not node.minimum or made_of(node.body, leaf, rules)
    return leaf(node)


def check_endings(rules: Rules) -> None:
    """Raise ``EbnfError`` if a rule reachable from ``root`` has no finite text."""
    ending = rules_made_of(rules, lambda leaf: True)
    for name in reachable(rules):
        if not ending[name]:
            raise EbnfError(f"the rule {name} has no text that ends")


def reachable(rules: Rules) -> list[str]:
    """Return the rules reachable from ``root``, ``root`` first."""
    result, reached = ["root"], {"root"}
    for name in result:
        new = [item for item in dict.fromkeys(names(rules[name])) if item not in reached]
        result += new
        reached.update(new)
    return result


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
                raise self._error("a rule (name ::= ...) is expected")
            if name in rules:
                raise self._error(f"rule {name} is defined twice")
            self._advance()
            rules[name] = self._either()
            if self._token is not None and self._token["sign"] is not None:
                raise self._error(f"an unexpected {self._token['sign']!r}")
        if "root" not in rules:
            raise EbnfError("the grammar has no rule named root")
        for name, body in rules.items():
            for other in names(body):
                if other not in rules:
                    raise EbnfError(f"rule {name} refers to {other}, which is not defined")
        check_endings(rules)
        return rules

    def _error(self, problem: str) -> EbnfError:
        at = self._at if self._token is None else self._token.start()
        return EbnfError(f"the grammar cannot be read: {problem} at line {self._source.count(chr(10), 0, at) + 1}")

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
        """Consume one of ``signs`` if it comes next."""
        if self._token is None or self._token["sign"] is None or self._token["sign"] not in signs:
            return None
        result: str = self._token["sign"]
        self._advance()
        return result

    def _either(self) -> Node:
        branches = [self._parts()]
        while self._sign("|"):
            branches.append(self._parts())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _parts(self) -> Node:
        parts: list[Node] = []
        while (part := self._part()) is not None:
            parts.append(self._repeated(part))
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
            result: Node = Name(token["name"])
        elif token["text"] is not None:
            result = Text("".join(map(chr, self._characters(token["text"]))))
        elif token["set"] is not None:
            result = self._set(token["set"])
        elif token["minimum"] is not None or token["sign"] in "*+?":
            raise self._error("nothing to repeat")
        else:
            return None
        self._advance()
        return result

    def _group(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} nested groups")
        result = self._either()
        self._depth -= 1
        if not self._sign(")"):
            raise self._error("a missing ')'")
        return result

    def _repeated(self, node: Node) -> Node:
        while True:
            if sign := self._sign("*+?"):
                node = Repeat(node, *SIGNS[sign])
            elif self._token is not None and self._token["minimum"] is not None:
                node = Repeat(node, *self._bounds(self._token))
                self._advance()
            else:
                return node

    def _bounds(self, token: re.Match[str]) -> tuple[int, int | None]:
        minimum = int(token["minimum"])
        maximum = minimum if token["comma"] is None else None if token["maximum"] is None else int(token["maximum"])
        if (token["comma"] is None and token["maximum"]) or max(minimum, maximum or 0) > MAX_REPEATS:
            raise self._error(f"a repetition that is malformed or over {MAX_REPEATS}")
        if maximum is not None and maximum < minimum:
            raise self._error("a repetition out of order")
        return minimum, maximum

    def _set(self, inside: str) -> OneOf:
        negated = inside.startswith("^")
        matches = list(CHARACTER.finditer(inside, int(negated)))
        codes = [self._code(item) for item in matches]
        ranges, at = [], 0
        while at < len(codes):
            is_range = at + 2 < len(codes) and matches[at + 1][0] == "-"
            last = codes[at + 2] if is_range else codes[at]
            if last < codes[at]:
                raise self._error("a range out of order")
            ranges.append((codes[at], last))
            at += 3 if is_range else 1
        if not ranges and not negated:
            raise self._error("an empty class")
        return OneOf(tuple(ranges), negated)

    def _characters(self, inside: str) -> list[int]:
        return [self._code(item) for item in CHARACTER.finditer(inside)]

    def _code(self, match: re.Match[str]) -> int:
        """Parse one character and return its code point."""
        number = match[1] or match[2] or match[3]
        if number is None:
            escaped = match[4]
            if escaped is not None and escaped.isalnum() and escaped not in PLAIN:
                raise self._error(f"the escape {match[0]}")
            return ord(match[5] or PLAIN.get(escaped, escaped))
        code = int(number, 16)
        if code > LAST or 0xD800 <= code <= 0xDFFF:
            raise self._error(f"{match[0]}, which is no character")
        return code
