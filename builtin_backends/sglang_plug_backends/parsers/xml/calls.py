"""Parser of calls whose arguments are written one by one between tags."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sglang_plug import Constraint, OutputParser
from sglang_plug_backends.parsers.call_structures import Schemas
from sglang_plug_backends.parsers.json_text import EMPTY, read_value
from sglang_plug_backends.parsers.python_literal import literal_as_json
from sglang_plug_backends.parsers.reader import Malformed, SequentialParser, Steps

from .form import XmlForm
from .structure import structure
from .value_types import STRING, ValueType, argument_type, json_of

NAME = re.compile(r'[^<>"\s]*')
KEY = re.compile(r'[^<>"\n]*')
TEXT = ValueType(frozenset({STRING}))
WRITTEN = ValueType(limited=True)
"""The type of a value that is marked as JSON."""


class XmlCalls(SequentialParser):
    """Calls in one of ``forms``.

    An argument has the type that the function's schema gives it. Strings are passed on as they arrive, other values
    when they are complete. A value whose type is unknown is JSON if it can be read as JSON, and a string otherwise.
    """

    forms: ClassVar[tuple[XmlForm, ...]]
    """The forms that are read; the first one is enforced."""

    def __init__(self, functions: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__()
        self._functions = functions or {}

    @classmethod
    def for_functions(cls, functions: Mapping[str, Mapping[str, Any]]) -> OutputParser:
        """Return a parser that converts arguments to the types in the schemas."""
        return cls(functions)

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return calls in the first form, with values that are read as what their schema allows."""
        starts = [mark for form in cls.forms for mark in form.starts]
        return structure(cls.forms[0], starts, functions, required=required, parallel=parallel)

    def read(self) -> Steps[None]:
        """Read text and calls in any order."""
        forms = {mark: form for form in self.forms for mark in form.starts}
        while marker := (yield from self.text_until(*forms)):
            yield from self.attempt(self._section(forms[marker], marker), marker)

    def _section(self, form: XmlForm, marker: str) -> Steps[None]:
        """Read the calls of a section, or a single one, after ``marker``."""
        source = self.input
        if marker != form.opening:
            yield from self._call(form, form.begin[1:])
        while True:
            if marker == form.opening:
                yield from self._call(form, form.begin)
            yield from source.space()
            if marker != form.opening or (yield from source.follows(form.closing)):
                break
            if not (yield from source.peek()):
                break
        if marker != form.opening and form.closing:
            yield from source.follows(form.closing)

    def _call(self, form: XmlForm, begin: tuple[str, ...]) -> Steps[None]:
        source = self.input
        for mark in begin:
            yield from source.space()
            yield from source.expect(mark)
        name = yield from source.run(NAME)
        if name and form.name_only_end and (yield from source.follows(form.name_only_end)):
            self.emit_start(name)
            self.emit_arguments(EMPTY)
            self.emit_end()
            source.record()
            return
        if form.name_end:
            yield from source.expect(form.name_end)
        if not name:
            raise Malformed
        if form.name_end:
            self.emit_start(name)
            source.record()
            yield from source.space()
            if (yield from source.peek()) == "{":
                source.recorded()
                yield from read_value(source, self.emit_arguments)
                yield from self._end(form)
                return
        count = 0
        while True:
            yield from source.space()
            if not (yield from source.follows(form.parameter)):
                break
            key = (yield from source.run(KEY)).strip(" \t")
            kind = yield from self._kind(form, name, key)
            source.recorded()
            if not (count or form.name_end):
                self.emit_start(name)
            self.emit_arguments(f"{', ' if count else '{'}{json.dumps(key, ensure_ascii=False)}: ")
            yield from self._value(form, kind)
            source.record()
            count += 1
        yield from self._end(form, "}" if count else EMPTY, "" if count or form.name_end else name)

    def _end(self, form: XmlForm, arguments: str = "", name: str = "") -> Steps[None]:
        """Read the end of a call; ``name``: of a call that has not been started."""
        source = self.input
        yield from source.space()
        yield from source.expect(form.end[0])
        if name:
            self.emit_start(name)
        self.emit_arguments(arguments)
        self.emit_end()
        source.record()
        for mark in form.end[1:]:
            yield from source.space()
            if (yield from source.follows(mark)):
                source.record()  # a mark that was read is no text, whatever comes next

    def _kind(self, form: XmlForm, name: str, key: str) -> Steps[ValueType]:
        """Read the marks between a key and its value, and return the type of the value."""
        source = self.input
        kind = argument_type(self._functions.get(name, {}), key)
        if form.typed is not None:
            text, other = form.typed
            is_text = yield from source.follows(text)
            if not is_text:
                yield from source.expect(other)
            kind = TEXT if is_text else WRITTEN
        for mark in form.key_end:
            yield from source.space()
            yield from source.expect(mark)
        return kind

    def _value(self, form: XmlForm, kind: ValueType) -> Steps[None]:
        """Emit a value as JSON."""
        source = self.input
        yield from source.follows(form.value_line)
        if kind.members and (yield from self._member(form, kind.members)):
            return
        if not kind.is_text and not (kind.is_string and (yield from source.peek()) != '"'):
            if written := (yield from self._json(form, kind)):
                self.emit_arguments(written)
                return
            if STRING not in kind.types:
                text = yield from self._whole(form)
                self.emit_arguments(literal_as_json(text.strip()) or json.dumps(text, ensure_ascii=False))
                return
        self.emit_arguments('"')
        yield from self._text(form, lambda part: self.emit_arguments(json.dumps(part, ensure_ascii=False)[1:-1]))
        self.emit_arguments('"')

    def _member(self, form: XmlForm, members: frozenset[str]) -> Steps[bool]:
        """Emit one of the strings that a schema lists. False, and nothing is consumed, if the value is none of them."""
        if any(form.value_end in member for member in members):
            return False  # such members are written as JSON
        source = self.input
        source.record()
        try:
            text = yield from self._whole(form)
        except Malformed:
            text = None
        raw = source.recorded()
        if text not in members:
            source.push_back(raw)
            return False
        self.emit_arguments(json.dumps(text, ensure_ascii=False))
        return True

    def _json(self, form: XmlForm, kind: ValueType) -> Steps[str]:
        """Read a value of JSON and the mark after it. Empty, and nothing is consumed, if the text means itself.

        Strings within JSON may contain the mark, unless any text is a value, which then ends at the first mark.
        """
        source = self.input
        parts: list[str] = []
        source.record()
        try:
            yield from source.space()
            yield from read_value(source, parts.append)
            yield from source.space()
            yield from source.expect(form.value_end)
        except Malformed:
            source.push_back(source.recorded())
            return ""
        raw, written = source.recorded(), "".join(parts)
        result = None if kind.is_open and form.value_end in written else json_of(written, kind)
        if result is None:
            source.push_back(raw)
            return ""
        return result

    def _whole(self, form: XmlForm) -> Steps[str]:
        """Return the text up to the end of the value."""
        parts: list[str] = []
        yield from self._text(form, parts.append)
        return "".join(parts)

    def _text(self, form: XmlForm, write: Callable[[str], None]) -> Steps[None]:
        """Pass the text up to the end of the value on."""
        source, held = self.input, ""
        while True:
            text, marker = source.before((form.value_end,))
            text, held = held + text, ""
            if form.value_line and text.endswith(form.value_line):
                text, held = text[: -len(form.value_line)], form.value_line
            if text:
                write(text)
            if marker:
                return
            if source.at_end:
                write(held)
                raise Malformed
            yield
