"""Kimi K2: special tokens around each call's id and arguments."""

from __future__ import annotations

import re

from sglang_plug import Constraint

from .call_structures import (
    Form,
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
from .json_text import EMPTY, read_value
from .reader import Malformed, SequentialParser, Steps

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
BEGIN, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
PREFIX = "functions."
ID = re.compile(r"[^\s<>|]*")
NAME = re.compile(r"[^\s<>|:]+")
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}


class KimiK2(SequentialParser):
    """Ids ``functions.name:number`` and JSON between special tokens; the id is passed on."""

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read text, then calls."""
        self._ids = set[str]()
        while marker := (yield from self.text_until(SECTION, SECTION_END, BEGIN)):
            if marker == BEGIN:
                yield from self.attempt(self._call(), BEGIN)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tokens, or declares tools as Kimi does."""
        return ARGUMENTS in template or ("tool_declare" in template and "<|im_middle|>" in template)

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return a section of calls."""
        for name in functions:
            if not NAME.fullmatch(name):
                raise unsuitable_name(name)
        call = either(*(_form(name, arguments(schema)) for name, schema in functions.items()))
        result = sequence(token(SECTION), one_or_more(call, literal(""), parallel=parallel), token(SECTION_END))
        if not required:
            result = text_with_calls(result, text(SECTION, BEGIN), parallel=parallel)
        return constraint(result)

    def _call(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        id = yield from source.run(ID)
        yield from source.space()
        yield from source.expect(ARGUMENTS)
        yield from source.space()
        name = id.removeprefix(PREFIX).rpartition(":")[0] or id.removeprefix(PREFIX)
        if not name or (yield from source.peek()) not in ("{", "<"):
            raise Malformed
        has_arguments = (yield from source.peek()) == "{"
        self.emit_start(name, None if id in self._ids else id)
        self._ids.add(id)
        if has_arguments:
            yield from read_value(source, self.emit_arguments)
        else:
            self.emit_arguments(EMPTY)
        self.emit_end()
        source.record()
        yield from source.space()
        yield from source.expect(END)


def _form(name: str, value: Form) -> Form:
    number = arguments(NUMBER)
    return sequence(token(BEGIN), literal(f"{PREFIX}{name}:"), number, token(ARGUMENTS), value, token(END))
