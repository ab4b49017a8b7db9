"""Llama 3: objects with a name and parameters, at the beginning or after a special token."""

from __future__ import annotations

from sglang_plug import Constraint

from .call_structures import (
    OBJECT,
    OBJECT_OF_CALL,
    Schemas,
    calls,
    constraint,
    either,
    object_around,
    sequence,
    text,
    text_with_calls,
    token,
)
from .json_text import read_call
from .reader import Malformed, SequentialParser, Steps

MARKER = "<|python_tag|>"
SEPARATOR = "; "


class Llama3(SequentialParser):
    """``{"name": …, "parameters": {…}}``, several with ``;`` between them."""

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read calls at the beginning, then text and calls after markers."""
        yield from self.attempt(self._calls_in_row())
        while (yield from self.text_until(MARKER)):
            yield from self.attempt(self._calls_in_row(), MARKER)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True for the template of Llama 3.1 and later."""
        return "<|start_header_id|>" in template and '"parameters"' in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return calls without the special token, which models may omit; after text with it. Calls end the output."""
        row = calls(functions, lambda name: object_around(name, "parameters"), parallel=parallel, separator=SEPARATOR)
        if required:
            return constraint(row)
        start, only = text(MARKER, not_beginning=OBJECT), text(MARKER, not_beginning=OBJECT_OF_CALL)
        marked = text_with_calls(sequence(token(MARKER), row), start, parallel=False)
        return constraint(either(row, marked, only))

    def _calls_in_row(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        if (yield from source.peek()) != "{":
            raise Malformed
        while (yield from source.peek()) == "{":
            yield from read_call(self)
            source.record()
            yield from source.space()
            yield from source.follows(";")
            yield from source.space()
        if (yield from source.peek()):
            raise Malformed  # the rest is text
