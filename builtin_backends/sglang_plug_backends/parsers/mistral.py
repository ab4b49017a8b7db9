"""Mistral: a list of objects after a special token, or names and arguments that have special tokens of their own."""

from __future__ import annotations

import re

from sglang_plug import Constraint

from .json_text import read_call, read_value
from .reader import Malformed, SequentialParser, Steps
from .structures import Schemas, calls_only, object_around

MARKER, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
WORD = re.compile(r"[\w.:/-]*")


class Mistral(SequentialParser):
    """``[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`` or ``[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}``.

    The list is also understood without its marker at the beginning, which is how it is enforced.
    """

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Calls at the beginning, then text and calls after markers."""
        if (yield from self.input.follows(MARKER)):
            yield from self.attempt(self._after_marker(), MARKER)
        else:
            yield from self.attempt(self._list())
        while (yield from self.text_until(MARKER)):
            yield from self.attempt(self._after_marker(), MARKER)

    @classmethod
    def suits(cls, template: str) -> bool:
        """The template writes the marker."""
        return MARKER in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint | None:
        """The list."""
        if not required:
            return None
        return calls_only(functions, object_around, parallel=parallel, separator=", ", opening="[", closing="]")

    def _after_marker(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from self._list() if (yield from source.peek()) == "[" else self._named()

    def _list(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from source.expect("[")
        while True:
            yield from source.space()
            yield from read_call(self)
            source.record()
            yield from source.space()
            if (yield from source.follows("]")):
                source.record()
                return
            yield from source.expect(",")

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
        self.tell_start(name, id)
        yield from read_value(source, self.tell_arguments)
        self.tell_end()
