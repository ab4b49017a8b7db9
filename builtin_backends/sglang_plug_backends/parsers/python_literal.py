"""Streaming Python literals, passed on as JSON."""

from __future__ import annotations

import json
import re

from .json_text import HEXADECIMAL, SCALAR, WORD, Write
from .reader import Input, Malformed, Steps

CONSTANTS = {"True": "true", "False": "false", "None": "null"}
OPENINGS = {"{": ("{", "}", "}"), "[": ("[", "]", "]"), "(": ("[", ")", "]")}
"""Opening bracket -> JSON's opening, Python's closing and JSON's closing bracket."""
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
HEXADECIMAL_ESCAPES = {"x": 2, "u": 4, "U": 8}
RUNS = {'"': re.compile(r'[^"\\\n]*'), "'": re.compile(r"[^'\\\n]*")}
LONGEST_NUMBER = 512
HIGHEST_CHARACTER = 0x10FFFF
SURROGATE = re.compile("[\ud800-\udfff]")


def literal_as_json(text: str) -> str | None:
    """Return the Python literal ``text`` as JSON; ``None`` if it is none."""
    source = Input()
    source.add(text)
    source.close()
    parts: list[str] = []
    try:
        for _ in read_literal(source, parts.append):
            pass
    except Malformed:
        return None
    return "".join(parts) if source.at_end else None


def read_literal(source: Input, write: Write) -> Steps[None]:
    """Pass one literal on as JSON; tuples become lists. Raises ``Malformed`` for other text."""
    stack: list[tuple[str, str]] = []
    while True:
        first = yield from source.peek()
        if first in OPENINGS:
            opening, closing, written = OPENINGS[first]
            source.take()
            write(opening)
            yield from source.space()
            stack.append((closing, written))
            if (yield from source.peek()) != closing:
                if closing == "}":
                    yield from _read_key(source, write)
                continue
        elif first in ("'", '"'):
            yield from read_string(source, write)
        else:
            yield from _read_word(source, write)
        while stack:
            closing, written = stack[-1]
            yield from source.space()
            if (yield from source.follows(",")):
                yield from source.space()
                if (yield from source.peek()) != closing:
                    write(", ")
                    if closing == "}":
                        yield from _read_key(source, write)
                    break
            yield from source.expect(closing)
            write(written)
            stack.pop()
        if not stack:
            return


def read_string(source: Input, write: Write) -> Steps[None]:
    """Pass one string on as a JSON string."""
    quote = yield from source.peek()
    if quote not in RUNS:
        raise Malformed
    source.take()
    write('"')
    while True:
        yield from source.pass_on(RUNS[quote], lambda part: write(_inside(part)))
        after = yield from source.peek()
        if after == quote:
            source.take()
            write('"')
            return
        if after != "\\":
            raise Malformed
        source.take()
        write(_inside((yield from _read_escape(source))))


def _read_escape(source: Input) -> Steps[str]:
    kind = yield from source.peek()
    if not kind:
        raise Malformed
    source.take()
    if kind in HEXADECIMAL_ESCAPES:
        digits = ""
        while len(digits) < HEXADECIMAL_ESCAPES[kind]:
            digit = yield from source.peek()
            if not digit or digit not in HEXADECIMAL:
                raise Malformed
            digits += source.take()
        if int(digits, 16) > HIGHEST_CHARACTER:
            raise Malformed
        return chr(int(digits, 16))
    if kind == "\n":
        return ""
    return ESCAPES.get(kind, kind if kind in "\\'\"" else "\\" + kind)


def _read_key(source: Input, write: Write) -> Steps[None]:
    yield from read_string(source, write)
    yield from source.space()
    yield from source.expect(":")
    yield from source.space()
    write(": ")


def _read_word(source: Input, write: Write) -> Steps[None]:
    word = yield from source.run(WORD)
    word = CONSTANTS.get(word, word)
    if len(word) > LONGEST_NUMBER or not SCALAR.match(word):
        raise Malformed
    write(word)


def _inside(text: str) -> str:
    """Return ``text`` as it is written between the quotes of a JSON string; half a surrogate pair stays an escape."""
    return SURROGATE.sub(lambda half: json.dumps(half.group())[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
