"""Calls that are JSON objects, or a list of them, between marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sglang_plug import Constraint

from .call_structures import (
    Form,
    Schemas,
    calls,
    constraint,
    literal,
    object_around,
    one_or_more,
    sequence,
    text,
    text_with_calls,
    token,
)
from .json_text import read_call, read_calls
from .reader import SequentialParser, Steps


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The marks around calls."""

    opening: str
    closing: str = ""
    others: tuple[str, ...] = ()
    """Further marks that are read like ``opening``."""
    dropped: tuple[str, ...] = ()
    """Marks around the answer, which are left out of the text."""
    is_list: bool = False
    """One list of all calls is between the marks; otherwise one object."""
    key: str = "arguments"
    line: str = "\n"
    """Text between a mark and JSON."""


class MarkedJson(SequentialParser):
    """Objects with a name and arguments in ``form``; the closing mark may be missing."""

    form: ClassVar[JsonForm]

    def read(self) -> Steps[None]:
        """Read text and calls in any order."""
        form = self.form
        openings = (form.opening, *form.others)
        while marker := (yield from self.text_until(*openings, *form.dropped)):
            if marker in openings:
                yield from self.attempt(self._list() if form.is_list else self._objects(), marker)

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return calls between the marks, as templates write them."""
        form = cls.form
        call = calls(functions, lambda name: object_around(name, form.key), parallel=False, separator="")
        if form.is_list:
            call = sequence(literal("["), one_or_more(call, literal(", "), parallel=parallel), literal("]"))
        call = sequence(_mark(form.opening), literal(form.line), call, literal(form.line), _mark(form.closing))
        if required:
            return constraint(one_or_more(call, literal("\n"), parallel=parallel and not form.is_list))
        return constraint(text_with_calls(call, text(form.opening, *form.others), parallel=parallel))

    def _objects(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from read_call(self)
        while True:
            source.record()
            yield from source.space()
            if (yield from source.peek()) != "{":
                break
            yield from read_call(self)
        yield from source.expect(self.form.closing)

    def _list(self) -> Steps[None]:
        yield from read_calls(self)
        yield from self.input.space()
        yield from self.input.expect(self.form.closing)


def _mark(mark: str) -> Form:
    return token(mark) if mark else literal("")


class Hermes(MarkedJson):
    """Hermes, Qwen, Granite 4: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``."""

    form = JsonForm("<tool_call>", "</tool_call>")

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template shows the tags with JSON between them."""
        others = ("<function=", "<response>", "<|tool_call|>", "<arg_key")
        return "<tool_call>" in template and '"arguments' in template and not any(map(template.__contains__, others))


class Ernie45(MarkedJson):
    """Ernie 4.5 and X1: as Hermes, with the answer between tags."""

    form = JsonForm("<tool_call>", "</tool_call>", dropped=("<response>", "</response>"))

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes both kinds of tags."""
        return "<tool_call>" in template and "<response>" in template


class InternLM(MarkedJson):
    """InternLM and Intern-S1: an object between special tokens."""

    needs_special_tokens = True
    form = JsonForm("<|action_start|> <|plugin|>", "<|action_end|>", ("<|action_start|><|plugin|>",), key="parameters")

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tokens."""
        return "<|action_start|>" in template


class Granite(MarkedJson):
    """Granite 3: a list after a special token or a tag."""

    needs_special_tokens = True
    form = JsonForm("<|tool_call|>", "", ("<tool_call>",), is_list=True, line="")

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template shows the token."""
        return "<|tool_call|>" in template


class HunyuanA13B(MarkedJson):
    """Hunyuan A13B: a list between tags."""

    form = JsonForm("<tool_calls>", "</tool_calls>", is_list=True, line="")

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tags around JSON."""
        return "<tool_calls>" in template and "<tool_sep" not in template and "DSML" not in template


class Nemotron(MarkedJson):
    """Nemotron Nano 2: a list between tags."""

    form = JsonForm("<TOOLCALL>", "</TOOLCALL>", is_list=True, line="")

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the tags."""
        return "<TOOLCALL>" in template
