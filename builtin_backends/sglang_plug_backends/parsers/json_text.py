"""Streaming JSON: values passed on as they arrive, and objects that name a function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from .reader import Input, Malformed, SequentialParser, Steps

PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
WORD = re.compile(r"[-+.0-9A-Za-z]*")
SCALAR = re.compile(r"(?:true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)\Z")
CLOSING = {"{": "}", "[": "]"}
ESCAPES = frozenset('"\\/bfnrt')
HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
LONGEST_SCALAR = 512

NAME = "name"
ARGUMENTS = ("arguments", "parameters")
IDS = ("id", "tool_call_id")
EMPTY = "{}"

Write = Callable[[str], None]


def read_value(source: Input, write: Write) -> Steps[None]:
    """Pass one JSON value on as it arrives. Raises ``Malformed`` for invalid JSON."""
    stack: list[str] = []
    while True:
        first = yield from source.peek()
        if first in ("{", "["):
            write(source.take() + (yield from source.space()))
            stack.append(CLOSING[first])
            if (yield from source.peek()) != stack[-1]:
                if first == "{":
                    yield from _read_key(source, write)
                continue
        elif first == '"':
            yield from read_string(source, write)
        else:
            yield from _read_scalar(source, write)
        while stack:  # the next character follows a value or nothing
            write((yield from source.space()))
            after = yield from source.peek()
            if after == ",":
                write(source.take() + (yield from source.space()))
                if stack[-1] == "}":
                    yield from _read_key(source, write)
                break
            if after != stack[-1]:
                raise Malformed
            write(source.take())
            stack.pop()
        if not stack:
            return


def read_string(source: Input, write: Write) -> Steps[None]:
    """Pass one JSON string on, quotes included; bare control characters are escaped, as some models forget to."""
    yield from source.expect('"')
    write('"')
    while True:
        yield from source.pass_on(PLAIN, write)
        next = yield from source.peek()
        if next == '"':
            write(source.take())
            return
        if next == "\\":
            yield from _read_escape(source, write)
        elif next:
            write(json.dumps(source.take())[1:-1])
        else:
            raise Malformed


def read_text(source: Input) -> Steps[str]:
    """Return the value of a JSON string."""
    parts: list[str] = []
    yield from read_string(source, parts.append)
    result: str = json.loads("".join(parts))
    return result


def read_arguments(parser: SequentialParser, start: Callable[[], None]) -> Steps[None]:
    """Emit a call's arguments: an object, an object in a string, or null. Calls ``start`` once the type is certain."""
    source = parser.input
    first = yield from source.peek()
    if first == "{":
        start()
        yield from read_value(source, parser.emit_arguments)
    elif first == '"':
        text = yield from read_text(source)
        start()
        parser.emit_arguments(text or EMPTY)
    else:
        yield from source.expect("null")
        start()
        parser.emit_arguments(EMPTY)


def read_call(parser: SequentialParser) -> Steps[None]:
    """Emit the call of an object with a name and arguments. Raises ``Malformed`` if it is none.

    Members may come in any order; arguments before the name are held back.
    """
    call = _Call(parser)
    source = parser.input
    yield from source.expect("{")
    yield from source.space()
    while True:
        key = yield from read_text(source)
        yield from _read_colon(source)
        yield from call.read_member(key)
        yield from source.space()
        if (yield from source.follows("}")):
            break
        yield from source.expect(",")
        yield from source.space()
    call.end()


def read_calls(parser: SequentialParser) -> Steps[None]:
    """Emit the calls of a list of such objects. Raises ``Malformed`` if it is none."""
    source = parser.input
    yield from source.space()
    yield from source.expect("[")
    while True:
        yield from source.space()
        yield from read_call(parser)
        source.record()
        yield from source.space()
        if (yield from source.follows("]")):
            source.record()
            return
        yield from source.expect(",")


class _Call:
    """One call object, read member by member."""

    def __init__(self, parser: SequentialParser) -> None:
        self._parser = parser
        self._name: str | None = None
        self._id: str | None = None
        self._waiting: list[str] = []
        self._started = False

    def read_member(self, key: str) -> Steps[None]:
        """Read the value of ``key``."""
        source = self._parser.input
        if key == NAME and self._name is None:
            self._name = yield from read_text(source)
            if not self._name:
                raise Malformed
        elif key in ARGUMENTS and not self._started and not self._waiting:
            if self._name is None:
                if (yield from source.peek()) != "{":
                    raise Malformed
                yield from read_value(source, self._waiting.append)
            else:
                yield from read_arguments(self._parser, self._start)
        elif key in IDS and not self._started and (yield from source.peek()) == '"':
            self._id = yield from read_text(source)
        elif self._started or key in ("type", *IDS):
            yield from read_value(source, _ignore)
        else:
            raise Malformed  # another object: an answer in JSON

    def end(self) -> None:
        """Finish the object."""
        if not self._started:
            self._start()
            self._parser.emit_arguments("".join(self._waiting) or EMPTY)
        self._parser.emit_end()

    def _start(self) -> None:
        if self._name is None:
            raise Malformed
        self._started = True
        self._parser.emit_start(self._name, self._id)


def _read_key(source: Input, write: Write) -> Steps[None]:
    yield from read_string(source, write)
    write((yield from source.space()))
    yield from source.expect(":")
    write(":" + (yield from source.space()))


def _read_colon(source: Input) -> Steps[None]:
    yield from source.space()
    yield from source.expect(":")
    yield from source.space()


def _read_scalar(source: Input, write: Write) -> Steps[None]:
    text = yield from source.run(WORD)
    if len(text) > LONGEST_SCALAR or not SCALAR.match(text):
        raise Malformed
    write(text)


def _read_escape(source: Input, write: Write) -> Steps[None]:
    source.take()
    kind = yield from source.peek()
    if kind in ESCAPES and kind:
        write("\\" + source.take())
        return
    yield from source.expect("u")
    digits = ""
    while len(digits) < 4:
        if (yield from source.peek()) not in HEXADECIMAL:
            raise Malformed
        digits += source.take()
    write("\\u" + digits)


def _ignore(text: str) -> None:
    pass
