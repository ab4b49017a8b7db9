"""Structural tags as graphs of what follows what.

llguidance's lexer takes the longest token that matches. So free text is one token together with the mark that ends it,
and a place where that would not be unambiguous is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_plug_backends.grammars.notation import PYTHON
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.schema import Converter
from sglang_plug_backends.grammars.tags import Form, checked, read_tag, text, texts
from sglang_plug_backends.grammars.whitespace import Whitespace

from .schema import read_schema


@dataclass(eq=False, slots=True)
class End:
    """The output may end."""


@dataclass(eq=False, slots=True)
class Literal:
    """Exactly this text."""

    text: str
    next: Node


@dataclass(eq=False, slots=True)
class Token:
    """A special token."""

    id: int
    next: Node


@dataclass(eq=False, slots=True)
class Json:
    """A value of a schema."""

    schema: dict[str, Any]
    next: Node


@dataclass(eq=False, slots=True)
class Arguments:
    """Arguments of a call in Python, as an EBNF grammar."""

    grammar: str
    next: Node


@dataclass(eq=False, slots=True)
class Free:
    """Text in which some texts do not stand, and that has no beginning that matches an expression."""

    excludes: tuple[str, ...]
    not_beginning: str
    next: Node


@dataclass(eq=False, slots=True)
class Choice:
    """One of several; one that repeats something leads back to itself."""

    branches: list[Node] = field(default_factory=list)


Node = End | Literal | Token | Json | Arguments | Free | Choice


def read_graph(source: str, whitespace: Whitespace, special: Mapping[str, int]) -> Node:
    """The first node of the structural tag in ``source``. Raises ``Refusal``.

    ``special``: special tokens by name; others are spelled.
    """
    return _Reader(whitespace, special).node(read_tag(source), "format", End(), 0)


class _Reader:
    def __init__(self, whitespace: Whitespace, special: Mapping[str, int]) -> None:
        self._whitespace, self._special = whitespace, special

    def node(self, given: Any, path: str, next: Node, depth: int) -> Node:
        """``given``, and then ``next``."""
        match kind := checked(given, path, depth):
            case "const_string":
                return _literal(text(given, "value", path), next)
            case "token":
                name = text(given, "token", path)
                return Token(self._special[name], next) if name in self._special else _literal(name, next)
            case "any_text":
                beginning = text(given, "not_beginning", path) if "not_beginning" in given else ""
                return Free(tuple(texts(given, "excludes", path)), beginning, next)
            case "json_schema":
                return self._schema(given, path, next)
            case "sequence":
                for at, one in reversed(list(enumerate(given["elements"]))):
                    next = self.node(one, f"{path}/elements/{at}", next, depth + 1)
                return next
            case "or":
                branches = enumerate(given["elements"])
                return Choice([self.node(one, f"{path}/elements/{at}", next, depth + 1) for at, one in branches])
            case "optional" | "star" | "plus":
                return self._repeated(kind, given.get("content"), f"{path}/content", next, depth)
            case "tag":
                return self._tag(given, path, next, depth)
            case "tags_with_separator":
                return self._separated(given, path, next, depth)
            case "triggered_tags":
                return self._triggered(given, path, next, depth)
        raise Refusal(f"the format {kind!r} at {path} cannot be enforced by this backend")

    def _schema(self, given: Form, path: str, next: Node) -> Node:
        if "json_schema" not in given:
            raise Refusal(f"{path} needs json_schema")
        schema = given["json_schema"]
        match given.get("style", "json"):
            case "json":
                return Json(read_schema(json.dumps(schema, default=float)), next)
            case "python_arguments":
                return Arguments(Converter(schema, self._whitespace, PYTHON).arguments(), next)
            case style:
                raise Refusal(f"the style {str(style)[:40]!r} at {path} is unknown; known: json, python_arguments")

    def _repeated(self, kind: str, content: Any, path: str, next: Node, depth: int) -> Node:
        if kind == "optional":
            return Choice([self.node(content, path, next, depth + 1), next])
        again = Choice()
        first = self.node(content, path, again, depth + 1)
        again.branches += [first, next]
        return again if kind == "star" else first

    def _tag(self, given: Form, path: str, next: Node, depth: int) -> Node:
        inside = self.node(given.get("content"), f"{path}/content", _literal(text(given, "end", path), next), depth + 1)
        return _literal(text(given, "begin", path), inside)

    def _tags(self, given: Form, path: str, next: Node, depth: int) -> Choice:
        found = []
        for at, one in enumerate(given["tags"]):
            if not isinstance(one, dict) or one.get("type") != "tag":
                raise Refusal(f"{path}/tags/{at} must be a tag")
            found.append(self.node(one, f"{path}/tags/{at}", next, depth + 1))
        return Choice(found)

    def _separated(self, given: Form, path: str, next: Node, depth: int) -> Node:
        after = Choice([next])
        tags = self._tags(given, path, after, depth)
        if not given.get("stop_after_first"):
            after.branches.append(_literal(text(given, "separator", path), tags))
        return tags if given.get("at_least_one") else Choice([tags, next])

    def _triggered(self, given: Form, path: str, next: Node, depth: int) -> Node:
        triggers = texts(given, "triggers", path)
        for at, one in enumerate(given["tags"]):
            if not str(one.get("begin") if isinstance(one, dict) else "").startswith(tuple(triggers)):
                raise Refusal(f"{path}/tags/{at} must begin with one of the triggers")
        excludes = (*triggers, *texts(given, "excludes", path))
        after = Choice()
        tags = self._tags(given, path, after, depth)
        more = Free(excludes, "", Choice([tags, next]))
        after.branches.append(next if given.get("stop_after_first") else more)
        return tags if given.get("at_least_one") else more


def _literal(value: str, next: Node) -> Node:
    return Literal(value, next) if value else next


def branches(nodes: Sequence[Node]) -> list[Node]:
    """What may come first: ``nodes``, and the branches of those that are choices; each once."""
    found: list[Node] = []
    seen = set[int]()
    open_ = list(reversed(nodes))
    while open_:
        node = open_.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Choice):
            open_ += reversed(node.branches)
        else:
            found.append(node)
    return found
