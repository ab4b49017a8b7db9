"""Mistral: a list of objects after a special token, or names and arguments that have special tokens of their own."""

from __future__ import annotations

import re

from sglang_plug import Constraint

from .call_structures import (
    OBJECT,
    OBJECT_OF_CALL,
    SPACE,
    Form,
    Schemas,
    arguments,
    calls,
    constraint,
    either,
    literal,
    object_around,
    sequence,
    text,
    text_with_calls,
    token,
)
from .json_text import read_calls, read_value
from .reader import Malformed, SequentialParser, Steps

MARKER, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
WORD = re.compile(r"[\w.:/-]*")


class Mistral(SequentialParser):
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` or ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``.

    The list is also understood without its marker at the beginning, which is how it is enforced.
    """

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read calls at the beginning, then text and calls after markers."""
        if (yield from self.input.follows(MARKER)):
            yield from self.attempt(self._after_marker(), MARKER)
        else:
            yield from self.attempt(read_calls(self))
        while (yield from self.text_until(MARKER)):
            yield from self.attempt(self._after_marker(), MARKER)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the marker."""
        return MARKER in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return the list format; after the special token also names with arguments."""
        row = calls(functions, object_around, parallel=parallel, separator=", ", opening="[", closing="]")
        if required:
            return constraint(row)
        marked = sequence(token(MARKER), either(row, *cls._named_calls(functions)))
        gap, start = text(MARKER), text(MARKER, not_beginning=rf"{SPACE}\[{OBJECT}")
        only = text(MARKER, not_beginning=rf"{SPACE}\[{OBJECT_OF_CALL}")
        if not parallel:
            return constraint(either(row, text_with_calls(marked, start, parallel=False), only))
        first = either(start, sequence(row, gap))
        return constraint(either(text_with_calls(marked, gap, parallel=True, first=first), only))

    @staticmethod
    def _named_calls(functions: Schemas) -> list[Form]:
        return [
            sequence(literal(name), token(ARGUMENTS), arguments(schema))
            for name, schema in functions.items()
            if WORD.fullmatch(name)
        ]

    def _after_marker(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from read_calls(self) if (yield from source.peek()) == "[" else self._named()

    def _named(self) -> Steps[None]:
        source = self.input
        name = yield from source.run(WORD)
        id = None
        if (yield from source.follows(CALL_ID)):
            id = (yield from source.run(WORD)) or None
        yield from source.follows(ARGUMENTS)
        yield from source.space()
        if not name or (yield from source.peek()) != "{":
            raise Malformed
        self.emit_start(name, id)
        yield from read_value(source, self.emit_arguments)
        self.emit_end()
