"""DeepSeek V3, R1 and V3.1: marks around each call and around all of them."""

from __future__ import annotations

from typing import ClassVar

from sglang_plug import Constraint, ConstraintError

from .call_structures import Schemas, calls, constraint, text, text_with_calls
from .json_text import EMPTY, read_value
from .reader import Malformed, SequentialParser, Steps

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEPARATOR, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
KIND = "function"
FENCE = "```"
KINDS = ("['type']", ".type", f"{KIND}{SEPARATOR}")
"""Texts in templates that write the kind."""


class DeepSeek(SequentialParser):
    """V3: ``function``, the separator, the name and fenced JSON; V3.1: the name, the separator and bare JSON."""

    separator: ClassVar[str] = "\n"

    @classmethod
    def around(cls, name: str) -> tuple[str, str]:
        """Return the texts before and after the arguments of a call."""
        return f"{BEGIN}{KIND}{SEPARATOR}{name}\n{FENCE}json\n", f"\n{FENCE}{END}"

    def read(self) -> Steps[None]:
        """Read text, then calls."""
        while marker := (yield from self.text_until(CALLS_BEGIN, CALLS_END, BEGIN)):
            if marker == BEGIN:
                yield from self.attempt(self._call(), BEGIN)

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the marks and the kind of each call."""
        return CALLS_BEGIN in template and any(map(template.__contains__, KINDS))

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return calls in the format of the models."""
        for name in functions:
            if name != name.strip() or "\n" in name or SEPARATOR in name:
                raise ConstraintError(
                    f"the function {name!r} cannot be called: its name must be one line, without marks"
                )
        separator = cls.separator
        result = calls(
            functions, cls.around, parallel=parallel, separator=separator, opening=CALLS_BEGIN, closing=CALLS_END
        )
        if not required:
            result = text_with_calls(result, text(CALLS_BEGIN, BEGIN), parallel=parallel)
        return constraint(result)

    def _call(self) -> Steps[None]:
        source = self.input
        name = (yield from self._until(SEPARATOR)).strip()
        fenced = name == KIND and (yield from source.peek()) != "{"
        if fenced:
            name = (yield from self._until("\n")).strip()
            yield from source.follows(FENCE)
            yield from source.follows("json")
        yield from source.space()
        if not name or (yield from source.peek()) not in ("{", "<", "`"):
            raise Malformed
        self.emit_start(name)
        if (yield from source.peek()) == "{":
            yield from read_value(source, self.emit_arguments)
        else:
            self.emit_arguments(EMPTY)
        self.emit_end()
        source.record()
        yield from source.space()
        if (yield from source.follows(FENCE)):
            yield from source.space()
        yield from source.expect(END)

    def _until(self, marker: str) -> Steps[str]:
        """Read the text before ``marker`` and the marker. Raises ``Malformed`` if it never comes."""
        parts: list[str] = []
        while True:
            text, ending = self.input.before((marker,))
            parts.append(text)
            if ending:
                return "".join(parts)
            if self.input.at_end:
                raise Malformed
            yield


class DeepSeekV31(DeepSeek):
    """V3.1: written without the kind and the fence; both formats are read."""

    separator = ""

    @classmethod
    def around(cls, name: str) -> tuple[str, str]:
        """Return the texts before and after the arguments of a call."""
        return f"{BEGIN}{name}{SEPARATOR}", END

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes the marks without the kind of a call."""
        return CALLS_BEGIN in template and not super().matches_template(template)
