"""Function calls written as a Python list of calls."""

from __future__ import annotations

import json
import re

from sglang_plug import Constraint, ConstraintError

from .call_structures import (
    SPACE,
    Form,
    Schemas,
    calls,
    constraint,
    either,
    optional,
    sequence,
    text,
    text_with_calls,
    token,
)
from .json_text import read_call as read_json_call
from .python_literal import read_literal
from .reader import Malformed, SequentialParser, Steps

OPENING, CLOSING = "<|python_start|>", "<|python_end|>"
LFM2_OPENING, LFM2_CLOSING = "<|tool_call_start|>", "<|tool_call_end|>"
WORD = re.compile(r"[\w.-]*")
CALL_BEGINS = rf"{SPACE}\[{SPACE}[^\x00-,\/:-@\[-\^`{{-\x7f]+\("
"""Expression for a list that begins with a call; every letter beyond ASCII might be part of a name."""


class Pythonic(SequentialParser):
    """``[name(argument=value, …), …]`` at the beginning or after a special token; arguments become JSON."""

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read calls, then text; further lists need the token."""
        if not (yield from self.input.follows(OPENING)):
            yield from self.attempt(self.read_list())
        else:
            yield from self.attempt(self.read_list(), OPENING)
        while marker := (yield from self.text_until(OPENING, CLOSING)):
            if marker == OPENING:
                yield from self.attempt(self.read_list(), OPENING)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the token, or shows calls in brackets."""
        return OPENING in template or "[func_name1(params_name1" in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return the list without its tokens; after text with them."""
        result = cls.row(functions, parallel=parallel)
        if required:
            return constraint(result)
        marked = sequence(token(OPENING), result, optional(token(CLOSING)))
        gap, start = text(OPENING), text(OPENING, not_beginning=CALL_BEGINS)
        if not parallel:
            return constraint(either(result, text_with_calls(marked, start, parallel=False)))
        return constraint(text_with_calls(marked, gap, parallel=True, first=either(start, sequence(result, gap))))

    @staticmethod
    def row(functions: Schemas, *, parallel: bool) -> Form:
        """Return the list of calls."""
        for name in functions:
            if not WORD.fullmatch(name):
                raise ConstraintError(
                    f"the function {name!r} cannot be called in Python; letters, digits and _ - . may be in its name"
                )
        return calls(
            functions,
            lambda name: (f"{name}(", ")"),
            parallel=parallel,
            separator=", ",
            opening="[",
            closing="]",
            style="python_arguments",
        )

    def read_list(self) -> Steps[None]:
        """Read a list of calls."""
        source = self.input
        yield from source.space()
        yield from source.expect("[")
        while True:
            yield from source.space()
            yield from self.read_call()
            source.record()
            yield from source.space()
            if not (yield from source.follows(",")):
                break
            yield from source.space()
            if (yield from source.peek()) == "]":
                break
        yield from source.expect("]")

    def read_call(self) -> Steps[None]:
        """Read one call."""
        source = self.input
        name = yield from self._word()
        yield from source.expect("(")
        yield from source.space()
        key = ""
        if (yield from source.peek()) != ")":
            key = yield from self._key()
        self.emit_start(name)
        self.emit_arguments("{")
        while key:
            self.emit_arguments(f"{json.dumps(key, ensure_ascii=False)}: ")
            yield from read_literal(source, self.emit_arguments)
            yield from source.space()
            key = ""
            if (yield from source.follows(",")):
                yield from source.space()
                if (yield from source.peek()) != ")":
                    key = yield from self._key()
                    self.emit_arguments(", ")
        yield from source.expect(")")
        self.emit_arguments("}")
        self.emit_end()

    def _key(self) -> Steps[str]:
        key = yield from self._word()
        yield from self.input.space()
        yield from self.input.expect("=")
        yield from self.input.space()
        return key

    def _word(self) -> Steps[str]:
        result = yield from self.input.run(WORD)
        if not result:
            raise Malformed
        return result


class Lfm2(Pythonic):
    """LFM2: the list is between special tokens; its members may be objects of JSON."""

    def read(self) -> Steps[None]:
        """Read text and lists in any order."""
        while marker := (yield from self.text_until(LFM2_OPENING, LFM2_CLOSING)):
            if marker == LFM2_OPENING:
                yield from self.attempt(self.read_list(), marker)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the token, or lists tools as LFM2 does."""
        return LFM2_OPENING in template or "<|tool_list_start|>" in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return the list between its tokens."""
        result = sequence(token(LFM2_OPENING), cls.row(functions, parallel=parallel), token(LFM2_CLOSING))
        if not required:
            result = text_with_calls(result, text(LFM2_OPENING), parallel=parallel)
        return constraint(result)

    def read_call(self) -> Steps[None]:
        """Read one call, in Python or JSON."""
        is_json = (yield from self.input.peek()) == "{"
        yield from read_json_call(self) if is_json else super().read_call()
