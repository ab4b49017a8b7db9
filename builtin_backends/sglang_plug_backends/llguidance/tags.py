"""Structural tags as graphs of successive parts.

llguidance's lexer takes the longest token that matches. So free text is one token together with the mark that ends it,
and ambiguous ends are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang_plug_backends.grammars.json_schema.notation import PYTHON
from sglang_plug_backends.grammars.json_schema.schema import Converter
from sglang_plug_backends.grammars.json_schema.whitespace import Whitespace
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.tags import Form, checked, in_schema, read_tag, text, texts

from .schema import read_schema


@dataclass(eq=False, slots=True)
class End:
    """A possible end of the output."""


@dataclass(eq=False, slots=True)
class Literal:
    """A literal text."""

    text: str
    next: Node


@dataclass(eq=False, slots=True)
class Token:
    """A special token."""

    id: int
    next: Node


@dataclass(eq=False, slots=True)
class Json:
    """A value of a JSON schema."""

    schema: dict[str, Any]
    next: Node


@dataclass(eq=False, slots=True)
class Arguments:
    """Arguments of a call in Python, as an EBNF grammar."""

    grammar: str
    next: Node


@dataclass(eq=False, slots=True)
class Free:
    """Text that excludes some texts and has no beginning that matches an expression."""

    excludes: tuple[str, ...]
    not_beginning: str
    next: Node


@dataclass(eq=False, slots=True)
class Choice:
    """An alternation; a repetition refers back to itself."""

    branches: list[Node] = field(default_factory=list)


Node = End | Literal | Token | Json | Arguments | Free | Choice


Check = Callable[[dict[str, Any]], None]
"""Check that raises ``Refusal`` for a schema that cannot be enforced."""


def read_graph(
    source: str, whitespace: Whitespace, special: Mapping[str, int], check: Check = lambda schema: None
) -> Node:
    """Build the graph of the structural tag in ``source`` and return its first node. Raises ``Refusal``.

    ``special``: special tokens by name; others are spelled. ``check``: called for each schema.
    """
    return _Reader(whitespace, special, check).node(read_tag(source), "format", End(), 0)


class _Reader:
    def __init__(self, whitespace: Whitespace, special: Mapping[str, int], check: Check) -> None:
        self._whitespace, self._special, self._check = whitespace, special, check

    def node(self, form: Any, path: str, next: Node, depth: int) -> Node:
        """Build the node of ``form``, followed by ``next``."""
        match kind := checked(form, path, depth):
            case "const_string":
                return _literal(text(form, "value", path), next)
            case "token":
                name = text(form, "token", path)
                return Token(self._special[name], next) if name in self._special else _literal(name, next)
            case "any_text":
                beginning = text(form, "not_beginning", path) if "not_beginning" in form else ""
                return Free(tuple(texts(form, "excludes", path)), beginning, next)
            case "json_schema":
                with in_schema(form, path):
                    return self._schema(form, path, next)
            case "sequence":
                for at, element in reversed(list(enumerate(form["elements"]))):
                    next = self.node(element, f"{path}/elements/{at}", next, depth + 1)
                return next
            case "or":
                branches = enumerate(form["elements"])
                return Choice([self.node(branch, f"{path}/elements/{at}", next, depth + 1) for at, branch in branches])
            case "optional" | "star" | "plus":
                return self._repeated(kind, form.get("content"), f"{path}/content", next, depth)
            case "tag":
                return self._tag(form, path, next, depth)
            case "tags_with_separator":
                return self._separated(form, path, next, depth)
            case "triggered_tags":
                return self._triggered(form, path, next, depth)
        raise Refusal(f"the format {kind!r} at {path} cannot be enforced by this backend")

    def _schema(self, form: Form, path: str, next: Node) -> Node:
        if "json_schema" not in form:
            raise Refusal(f"{path} needs json_schema")
        schema = form["json_schema"]
        match form.get("style", "json"):
            case "json":
                read = read_schema(json.dumps(schema, default=float))
                self._check(read)
                return Json(read, next)
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

    def _tag(self, form: Form, path: str, next: Node, depth: int) -> Node:
        inside = self.node(form.get("content"), f"{path}/content", _literal(text(form, "end", path), next), depth + 1)
        return _literal(text(form, "begin", path), inside)

    def _tags(self, form: Form, path: str, next: Node, depth: int) -> Choice:
        results = []
        for at, tag in enumerate(form["tags"]):
            if not isinstance(tag, dict) or tag.get("type") != "tag":
                raise Refusal(f"{path}/tags/{at} must be a tag")
            results.append(self.node(tag, f"{path}/tags/{at}", next, depth + 1))
        return Choice(results)

    def _separated(self, form: Form, path: str, next: Node, depth: int) -> Node:
        after = Choice([next])
        tags = self._tags(form, path, after, depth)
        if not form.get("stop_after_first"):
            after.branches.append(_literal(text(form, "separator", path), tags))
        return tags if form.get("at_least_one") else Choice([tags, next])

    def _triggered(self, form: Form, path: str, next: Node, depth: int) -> Node:
        triggers = texts(form, "triggers", path)
        for at, tag in enumerate(form["tags"]):
            if not str(tag.get("begin") if isinstance(tag, dict) else "").startswith(tuple(triggers)):
                raise Refusal(f"{path}/tags/{at} must begin with one of the triggers")
        excludes = (*triggers, *texts(form, "excludes", path))
        after = Choice()
        tags = self._tags(form, path, after, depth)
        more = Free(excludes, "", Choice([tags, next]))
        after.branches.append(next if form.get("stop_after_first") else more)
        return tags if form.get("at_least_one") else more


def _literal(value: str, next: Node) -> Node:
    return Literal(value, next) if value else next


def branches(nodes: Sequence[Node]) -> list[Node]:
    """Return ``nodes`` with choices replaced by their branches, each once."""
    results: list[Node] = []
    visited = set[int]()
    open_ = list(reversed(nodes))
    while open_:
        node = open_.pop()
        if id(node) in visited:
            continue
        visited.add(id(node))
        if isinstance(node, Choice):
            open_ += reversed(node.branches)
        else:
            results.append(node)
    return results
