"""Hermes and Qwen: each call is an object between two tags."""

from __future__ import annotations

from sglang_plug import Constraint

from .call_structures import Schemas, calls, constraint, object_around, text, text_with_calls
from .json_text import read_call
from .reader import SequentialParser, Steps

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class Tagged(SequentialParser):
    """``<tool_call>{"name": …, "arguments": {…}}</tool_call>``; the closing tag may be missing."""

    def read(self) -> Steps[None]:
        """Read text and calls in any order."""
        while (yield from self.text_until(OPENING)):
            yield from self.attempt(self._calls_in_tags(), OPENING)

    @classmethod
    def suits(cls, template: str) -> bool:
        """Return True if the template shows the tags with JSON between them."""
        return OPENING in template and '"arguments' in template and "<function=" not in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return tags on lines of their own, as templates write them."""
        if required:
            return constraint(calls(functions, _around, parallel=parallel, separator="\n"))
        call = calls(functions, _around, parallel=False, separator="")
        return constraint(text_with_calls(call, text(OPENING), parallel=parallel))

    def _calls_in_tags(self) -> Steps[None]:
        source = self.input
        yield from source.space()
        yield from read_call(self)
        while True:
            source.record()
            yield from source.space()
            if (yield from source.peek()) != "{":
                break
            yield from read_call(self)
        yield from source.expect(CLOSING)


def _around(name: str) -> tuple[str, str]:
    before, after = object_around(name)
    return f"{OPENING}\n{before}", f"{after}\n{CLOSING}"
