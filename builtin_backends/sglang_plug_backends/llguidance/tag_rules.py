"""Graphs of structural tags in the notation of llguidance."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

from sglang_plug_backends.grammars.ebnf import Name, Parts, Text, read_ebnf
from sglang_plug_backends.grammars.ebnf_regex import rules_to_regex, text_regex
from sglang_plug_backends.grammars.refusal import Refusal
from sglang_plug_backends.grammars.regex import regex_to_ebnf

from .lark import rules_to_lark
from .tags import Arguments, Choice, End, Free, Json, Literal, Node, Token, branches

MOST_CHARACTERS = 4 << 20
IN_NUMBERS = frozenset(string.digits + string.ascii_letters + ".+-")
"""What may go on a number or a word of JSON."""
CLOSED = ("object", "array", "string")
"""Types of values that show where they end."""
ROOT = "root"


def tag_to_lark(first: Node, write_json: Callable[[dict[str, Any]], str]) -> str:
    """A grammar for the outputs that ``first`` leads to. Raises ``Refusal``.

    ``write_json``: a schema as an expression of the notation.
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
            found = [one for first in branches([node]) for one in _together(first)]
            _check_apart(found)
            self._lines.append(f"{name}: {' | '.join(self._branch(one, before) for one in found)}")
            size += len(self._lines[-1])
            if size > MOST_CHARACTERS:
                raise Refusal(f"the grammar of the structural tag would have more than {MOST_CHARACTERS} characters")
        return "\n".join(self._lines) + "\n"

    def _rule(self, node: Node, before: Free | None) -> str:
        """The name of what ``node`` leads to, behind the free text ``before``."""
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
                    raise Refusal("two free texts beside each other cannot be told apart")
                return self._rule(node.next, node)
        if before is not None:
            raise Refusal("a value behind free text cannot be told apart from it")
        if isinstance(node, Arguments):
            return self._arguments(node)
        assert isinstance(node, Json)  # choices have been taken apart
        _check_value(node)
        return f"{self._write_json(node.schema)} {self._rule(node.next, None)}"

    def _literal(self, node: Literal, before: Free | None) -> str:
        written = node.text
        if before is None:
            return f"/{text_regex(written)}/ {self._rule(node.next, None)}"
        if not any(written.startswith(mark) and not _meets_itself(mark) for mark in before.excludes):
            raise Refusal(f"free text before {written[:40]!r} cannot be told apart from it; exclude how that begins")
        free = self._text(before)
        mark = f"M{len(self._lines)}"
        self._lines.append(f"{mark}: {free}_EMPTY /{text_regex(written)}/")
        return f"{mark} {self._rule(node.next, None)}"

    def _arguments(self, node: Arguments) -> str:
        """With the first character behind them, which shows where they end."""
        if not isinstance(node.next, Literal) or not node.next.text.startswith(")"):
            raise Refusal("')' must stand behind the arguments of a call")
        rules = read_ebnf(node.grammar)
        prefix = f"a{self._embedded}_"
        self._embedded += 1
        closed = {**rules, "arguments_": rules[ROOT], ROOT: Parts((Name("arguments_"), Text(")")))}
        self._lines.append(rules_to_lark(closed, prefix).rstrip())
        rest = node.next.text[1:]
        after = self._literal(Literal(rest, node.next.next), None) if rest else self._rule(node.next.next, None)
        return f"{prefix}start {after}"

    def _text(self, free: Free) -> str:
        """The terminal of a free text that is not empty; with ``_EMPTY`` behind the name, of one that may be."""
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
    """A text and the texts that may follow it as whole texts, so that their first part is no token for itself."""
    if not isinstance(node, Literal):
        return [node]
    whole = _joined(node)
    if not isinstance(whole.next, Choice):
        return [whole]
    found: list[Node] = []
    for one in branches([whole.next]):
        after = _joined(one) if isinstance(one, Literal) else Literal("", one)
        found.append(Literal(whole.text + after.text, after.next))
    return found


def _joined(node: Literal) -> Literal:
    """One text made of those that follow each other."""
    parts, next = [node.text], node.next
    while isinstance(next, Literal):
        parts.append(next.text)
        next = next.next
    return Literal("".join(parts), next)


def _check_apart(found: Sequence[Node]) -> None:
    """Raises ``Refusal`` if one branch may be the beginning of another, and both could go on."""
    if len(found) > 1 and any(isinstance(one, Json | Arguments) for one in found):
        raise Refusal("a value beside something else cannot be told apart from it")
    literals = sorted((one for one in found if isinstance(one, Literal)), key=lambda one: one.text)
    for at, short in enumerate(literals):
        closed = all(isinstance(one, Token | End | Free) for one in branches([short.next]))
        for longer in literals[at + 1 :]:
            if not longer.text.startswith(short.text):
                break
            if longer.text != short.text and not closed:
                raise Refusal(f"{short.text[:40]!r} is the beginning of {longer.text[:40]!r}, and both may go on")


def _check_value(node: Json) -> None:
    """Raises ``Refusal`` if what follows a value might belong to it."""
    if node.schema.get("type") in CLOSED:
        return
    for one in branches([node.next]):
        if not isinstance(one, Token | End) and not (isinstance(one, Literal) and one.text[0] not in IN_NUMBERS):
            raise Refusal("what stands behind a value of JSON cannot be told apart from it")


def _meets_itself(mark: str) -> bool:
    """Whether an end of ``mark`` is also a beginning of it."""
    return any(mark.endswith(mark[:count]) for count in range(1, len(mark)))
