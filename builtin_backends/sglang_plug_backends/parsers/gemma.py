"""Gemma 4: calls as a name and arguments in a notation of their own, between special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from sglang_plug import Constraint

from .call_structures import (
    Schemas,
    arguments,
    constraint,
    either,
    literal,
    one_or_more,
    sequence,
    text,
    text_with_calls,
    token,
    unsuitable_name,
)
from .json_text import SCALAR, Write, read_string
from .reader import Input, Malformed, SequentialParser, Steps

OPENING, CLOSING = "<|tool_call>", "<tool_call|>"
CALL = "call:"
QUOTE = '<|"|>'
NAME = re.compile(r"[^\s{}<>:,]*")
BARE = re.compile(r"[^\s{}\[\]<>:,]*")
CONSTANTS = {"None": "null", "none": "null", "True": "true", "False": "false"}
ENDS = {"{": "}", "[": "]"}


class Gemma4(SequentialParser):
    """``call:name{key:value,…}`` with strings between marks or in quotation marks; arguments become JSON."""

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read text and calls in any order."""
        while (yield from self.text_until(OPENING)):
            yield from self.attempt(self._call(), OPENING)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the beginning of a call."""
        return f"{OPENING}{CALL}" in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return calls whose arguments are JSON, which can express the schema; the marks of strings cannot."""
        for name in functions:
            if not NAME.fullmatch(name) or not name:
                raise unsuitable_name(name)
        call = either(
            *(
                sequence(token(OPENING), literal(_beginning(name, functions)), arguments(schema), token(CLOSING))
                for name, schema in functions.items()
            )
        )
        if not required:
            return constraint(text_with_calls(call, text(OPENING), parallel=parallel))
        return constraint(one_or_more(call, literal(""), parallel=parallel))

    def _call(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from source.expect(CALL)
        name = yield from source.run(NAME)
        yield from source.space()
        if not name or (yield from source.peek()) != "{":
            raise Malformed
        self.emit_start(name)
        yield from read_value(source, self.emit_arguments)
        self.emit_end()
        source.record()
        yield from source.space()
        yield from source.expect(CLOSING)


def _beginning(name: str, names: Iterable[str]) -> str:
    """Return the text before the arguments of ``name``; a blank ends it where another name goes on."""
    continues = any(other != name and other.startswith(name) for other in names)
    return f"{CALL}{name} " if continues else f"{CALL}{name}"


def read_value(source: Input, write: Write) -> Steps[None]:
    """Pass one value on as JSON. Raises ``Malformed`` for other text."""
    stack: list[str] = []
    while True:
        first = yield from source.peek()
        if first in ENDS and first:
            write(source.take())
            stack.append(ENDS[first])
            yield from source.space()
            if (yield from source.peek()) != stack[-1]:
                yield from _read_key(source, write, stack[-1])
                continue
        elif first == '"':
            yield from read_string(source, write)
        elif (yield from source.follows(QUOTE)):
            yield from _read_string(source, write)
        else:
            yield from _read_bare(source, write)
        while stack:
            yield from source.space()
            if (yield from source.follows(",")):
                yield from source.space()
                write(", ")
                yield from _read_key(source, write, stack[-1])
                break
            yield from source.expect(stack[-1])
            write(stack.pop())
        if not stack:
            return


def _read_key(source: Input, write: Write, end: str) -> Steps[None]:
    if end != "}":
        return
    if (yield from source.peek()) == '"':
        yield from read_string(source, write)
    elif (yield from source.follows(QUOTE)):
        yield from _read_string(source, write)
    else:
        key = yield from source.run(BARE)
        if not key:
            raise Malformed
        write(json.dumps(key, ensure_ascii=False))
    yield from source.space()
    yield from source.expect(":")
    yield from source.space()
    write(": ")


def _read_string(source: Input, write: Write) -> Steps[None]:
    write('"')
    while True:
        part, marker = source.before((QUOTE,))
        write(json.dumps(part, ensure_ascii=False)[1:-1])
        if marker:
            write('"')
            return
        if source.at_end:
            raise Malformed
        yield


def _read_bare(source: Input, write: Write) -> Steps[None]:
    word = yield from source.run(BARE)
    word = CONSTANTS.get(word, word)
    if not word:
        raise Malformed
    write(word if SCALAR.match(word) else json.dumps(word, ensure_ascii=False))
