"""Conversion of structural tag graphs to llguidance's notation."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

from sglang_plug_backends.grammars.ebnf.regex import regex_to_ebnf
from sglang_plug_backends.grammars.ebnf.to_regex import rules_to_regex, text_regex
from sglang_plug_backends.grammars.ebnf.tree import Name, Parts, Text, read_ebnf
from sglang_plug_backends.grammars.refusal import Refusal

from .lark import rules_to_lark
from .tags import Arguments, Choice, End, Free, Json, Literal, Node, Token, branches

MAX_CHARACTERS = 4 << 20
IN_NUMBERS = frozenset(string.digits + string.ascii_letters + ".+-")
"""Characters that may continue a number or a word of JSON."""
CLOSED = ("object", "array", "string")
"""Types of values that show where they end."""
ROOT = "root"


def tag_to_lark(first: Node, write_json: Callable[[dict[str, Any]], str]) -> str:
    """Write a grammar for the outputs that ``first`` leads to. Raises ``Refusal``.

    ``write_json``: writes a schema as an expression of the notation.
    """
    return _Writer(write_json).write(first)


class _Writer:
    def __init__(self, write_json: Callable[[dict[str, Any]], str]) -> None:
        self._write_json = write_json
        self._names: dict[tuple[int, int], str] = {}
        self._open: list[tuple[Node, Free | None]] = []
        self._texts: dict[tuple[tuple[str, ...], str], str] = {}
        self._lines: list[str] = []
        self._embedded = 0

    def write(self, first: Node) -> str:
        self._rule(first, None)
        size = 0
        for node, before in self._open:
            name = self._names[id(node), id(before)]
            results = [item for first in branches([node]) for item in _together(first)]
            _check_prefixes(results)
            self._lines.append(f"{name}: {' | '.join(self._branch(result, before) for result in results)}")
            size += len(self._lines[-1])
            if size > MAX_CHARACTERS:
                raise _unsupported(
                    f"its grammar would have more than {MAX_CHARACTERS} characters", "use fewer tags or schemas"
                )
        return "\n".join(self._lines) + "\n"

    def _rule(self, node: Node, before: Free | None) -> str:
        """Return the name of the rule for ``node`` after the free text ``before``."""
        key = id(node), id(before)
        if key not in self._names:
            self._names[key] = f"n{len(self._names)}" if self._names else "start"
            self._open.append((node, before))
        return self._names[key]

    def _branch(self, node: Node, before: Free | None) -> str:
        free = "" if before is None else f"{self._text(before)}? "
        match node:
            case End():
                return free or '""'
            case Token():
                return f"{free}<[{node.id}]> {self._rule(node.next, None)}"
            case Literal():
                return self._literal(node, before)
            case Free():
                if before is not None:
                    raise _unsupported("a free text follows another one", "put a fixed text or a token between them")
                return self._rule(node.next, node)
        if before is not None:
            raise _unsupported(
                "a value follows free text directly", "put a fixed text between them that the free text excludes"
            )
        if isinstance(node, Arguments):
            return self._arguments(node)
        assert isinstance(node, Json)  # choices have been split into branches
        _check_value(node)
        return f"{self._write_json(node.schema)} {self._rule(node.next, None)}"

    def _literal(self, node: Literal, before: Free | None) -> str:
        written = node.text
        if before is None:
            return f"/{text_regex(written)}/ {self._rule(node.next, None)}"
        if not any(written.startswith(mark) and not _meets_itself(mark) for mark in before.excludes):
            raise _unsupported(
                f"free text before {written[:40]!r} might contain that text",
                "exclude a text that it begins with and of which no end is also a beginning",
            )
        free = self._text(before)
        mark = f"M{len(self._lines)}"
        self._lines.append(f"{mark}: {free}_EMPTY /{text_regex(written)}/")
        return f"{mark} {self._rule(node.next, None)}"

    def _arguments(self, node: Arguments) -> str:
        """Write arguments including the first character after them, which shows where they end."""
        if not isinstance(node.next, Literal) or not node.next.text.startswith(")"):
            raise _unsupported("the arguments of a call are not followed by ')'", "begin the text after them with ')'")
        rules = read_ebnf(node.grammar)
        prefix = f"a{self._embedded}_"
        self._embedded += 1
        closed = {**rules, "arguments_": rules[ROOT], ROOT: Parts((Name("arguments_"), Text(")")))}
        self._lines.append(rules_to_lark(closed, prefix).rstrip())
        following = node.next.text[1:]
        after = (
            self._literal(Literal(following, node.next.next), None) if following else self._rule(node.next.next, None)
        )
        return f"{prefix}start {after}"

    def _text(self, free: Free) -> str:
        """Return the terminal of a non-empty free text; with the suffix ``_EMPTY``, of one that may be empty."""
        key = free.excludes, free.not_beginning
        if key not in self._texts:
            name = self._texts[key] = f"T{len(self._texts)}"
            without = ""
            if free.excludes:
                without += f" & ~/(?s:.)*({'|'.join(map(text_regex, free.excludes))})(?s:.)*/"
            if free.not_beginning:
                beginning = read_ebnf(f"{ROOT} ::= {regex_to_ebnf(free.not_beginning)}")
                without += f" & ~/({rules_to_regex(beginning)})(?s:.)*/"
            self._lines += [f"{name}: /(?s:.)+/{without}", f"{name}_EMPTY: /(?s:.)*/{without}"]
        return self._texts[key]


def _together(node: Node) -> list[Node]:
    """Combine a text with its possible continuations into whole texts, so that its first part is no separate token."""
    if not isinstance(node, Literal):
        return [node]
    whole = _joined(node)
    if not isinstance(whole.next, Choice):
        return [whole]
    results: list[Node] = []
    for branch in branches([whole.next]):
        after = _joined(branch) if isinstance(branch, Literal) else Literal("", branch)
        results.append(Literal(whole.text + after.text, after.next))
    return results


def _joined(node: Literal) -> Literal:
    """Merge consecutive texts into one."""
    parts, next = [node.text], node.next
    while isinstance(next, Literal):
        parts.append(next.text)
        next = next.next
    return Literal("".join(parts), next)


def _check_prefixes(nodes: Sequence[Node]) -> None:
    """Raise ``Refusal`` if one branch may be a prefix of another and both could continue."""
    if len(nodes) > 1 and any(isinstance(result, Json | Arguments) for result in nodes):
        raise _unsupported("a value is an alternative to another format", "begin the alternatives with different texts")
    literals = sorted((result for result in nodes if isinstance(result, Literal)), key=lambda item: item.text)
    for at, short in enumerate(literals):
        closed = all(isinstance(branch, Token | End | Free) for branch in branches([short.next]))
        for longer in literals[at + 1 :]:
            if not longer.text.startswith(short.text):
                break
            if longer.text != short.text and not closed:
                raise _unsupported(
                    f"the alternative {short.text[:40]!r} is a prefix of {longer.text[:40]!r}, and both continue",
                    "change one of the texts",
                )


def _check_value(node: Json) -> None:
    """Raise ``Refusal`` if the text after a value might belong to it."""
    if node.schema.get("type") in CLOSED:
        return
    for branch in branches([node.next]):
        if not isinstance(branch, Token | End) and not (
            isinstance(branch, Literal) and branch.text[0] not in IN_NUMBERS
        ):
            raise _unsupported(
                "what follows a JSON value might belong to the value",
                "continue with a text that does not begin with a digit, an ASCII letter, '.', '+' or '-'",
            )


def _unsupported(reason: str, remedy: str) -> Refusal:
    return Refusal(f"llguidance cannot enforce this structural tag: {reason}; {remedy}, or use another grammar backend")


def _meets_itself(mark: str) -> bool:
    """Return whether a suffix of ``mark`` is also a prefix of it."""
    return any(mark.endswith(mark[:count]) for count in range(1, len(mark)))
