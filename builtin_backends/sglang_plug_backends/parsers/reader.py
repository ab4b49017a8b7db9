"""Parsers as sequential code: a generator that waits wherever the text ends so far."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, Reasoning, Text
from sglang_plug.parsers import Event

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Code that stops for more text, and returns ``T``."""

SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The text does not keep the format from here on."""


class Input:
    """Text that comes in pieces, read once from the front."""

    def __init__(self) -> None:
        self._text, self._at, self._closed = "", 0, False
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        """More text."""
        self._text, self._at = self._text[self._at :] + text, 0

    def close(self) -> None:
        """No more text will come."""
        self._closed = True

    def record(self, first: str = "") -> None:
        """Remember what is taken from now on."""
        self._record = [first]

    def recorded(self) -> str:
        """What was taken since ``record``; ends the recording."""
        found, self._record = "".join(self._record or ()), None
        return found

    def peek(self) -> Steps[str]:
        """The next character, which stays; empty at the end of the output."""
        while self._at == len(self._text) and not self._closed:
            yield
        return self._text[self._at : self._at + 1]

    def take(self, count: int = 1) -> str:
        """The next ``count`` characters, which must be there."""
        found = self._text[self._at : self._at + count]
        self._at += count
        if self._record is not None:
            self._record.append(found)
        return found

    def run(self, characters: re.Pattern[str]) -> Steps[str]:
        """The longest run of ``characters``, a pattern of one repeated class."""
        found: list[str] = []
        yield from self.pass_on(characters, found.append)
        return "".join(found)

    def pass_on(self, characters: re.Pattern[str], write: Callable[[str], None]) -> Steps[None]:
        """The same, written as it comes."""
        while (yield from self.peek()):
            match = characters.match(self._text, self._at)
            if match is None or match.end() == self._at:
                return
            write(self.take(match.end() - self._at))

    def all(self) -> Steps[str]:
        """Everything there is; empty at the end of the output."""
        yield from self.peek()
        return self.take(len(self._text) - self._at)

    def space(self) -> Steps[str]:
        """Blanks and line ends."""
        return (yield from self.run(SPACE))

    def follows(self, literal: str) -> Steps[bool]:
        """Take ``literal`` if it comes next."""
        while not self._closed and len(self._text) - self._at < len(literal):
            if not literal.startswith(self._text[self._at :]):
                return False
            yield
        if self._text.startswith(literal, self._at):
            self.take(len(literal))
            return True
        return False

    def expect(self, literal: str) -> Steps[None]:
        """Take ``literal``. Raises ``Malformed`` if something else comes."""
        if not (yield from self.follows(literal)):
            raise Malformed

    def before(self, markers: Sequence[str]) -> tuple[str, str]:
        """What is there of the text before the first of ``markers``, and the marker; both are taken.

        No marker may be the beginning of another.
        """
        found = re.compile("|".join(map(re.escape, markers))).search(self._text, self._at)
        if found is not None:
            return self.take(found.start() - self._at), self.take(len(found.group()))
        left = len(self._text) - self._at
        return self.take(left if self._closed else left - self._held(markers)), ""

    @property
    def at_end(self) -> bool:
        """True once everything has been taken and nothing will come."""
        return self._closed and self._at == len(self._text)

    def _held(self, markers: Sequence[str]) -> int:
        """Characters at the end that may be the beginning of a marker."""
        most = min(len(self._text) - self._at, max(map(len, markers)) - 1)
        for count in range(most, 0, -1):
            end = self._text[-count:]
            if any(one.startswith(end) for one in markers):
                return count
        return 0


class SequentialParser(OutputParser):
    """A parser whose format is told by ``read``."""

    def __init__(self) -> None:
        self.input = Input()
        self._events: list[Event] = []
        self._calls = 0
        self._is_open = False
        self._space: list[str] = []
        self._drops_space = False
        self._steps = self.read()

    @abstractmethod
    def read(self) -> Steps[None]:
        """Read the whole output and tell what is in it."""

    def feed(self, text: str) -> list[Event]:
        """What has become certain with ``text``."""
        self.input.add(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """The rest."""
        self.input.close()
        return self._advance()

    def tell_text(self, text: str) -> None:
        """Text of the answer. White space next to a call is dropped, so that at the end of ``text`` has to wait."""
        kept = text.rstrip()
        if kept and self._drops_space:
            text, self._drops_space = text.lstrip(), False
            self._space.clear()
        if kept:
            body = text[: len(text.rstrip())]
            self._tell(Text("".join((*self._space, body))))
            self._space = [text[len(body) :]]
        else:
            self._space.append(text)

    def tell_reasoning(self, text: str) -> None:
        """What the model thought."""
        if text:
            self._tell(Reasoning(text))

    def tell_start(self, name: str, id: str | None = None) -> None:
        """A call begins; what was recorded is no text any more."""
        self.input.recorded()
        self._space.clear()
        self._drops_space, self._is_open = True, True
        self._tell(CallStart(self._calls, name, id))

    def tell_arguments(self, text: str) -> None:
        """More of the call's arguments."""
        if text:
            self._tell(CallArguments(self._calls, text))

    def tell_end(self) -> None:
        """The call is over."""
        self._is_open = False
        self._tell(CallEnd(self._calls))
        self._calls += 1

    def text_until(self, *markers: str) -> Steps[str]:
        """Tell text up to one of ``markers``, which is taken and returned; empty at the end of the output."""
        while True:
            text, marker = self.input.before(markers)
            if text:
                self.tell_text(text)
            if marker or self.input.at_end:
                return marker
            yield

    def tell_rest(self) -> Steps[None]:
        """What is left is text."""
        while text := (yield from self.input.all()):
            self.tell_text(text)

    def attempt(self, steps: Steps[None], opening: str = "") -> Steps[bool]:
        """Read a call. If it is malformed, what was read since ``opening`` is text, or the call that began ends."""
        self.input.record(opening)
        try:
            yield from steps
        except Malformed:
            if self._is_open:
                self.tell_end()
            self.tell_text(self.input.recorded())
            return False
        self.input.recorded()
        return True

    def _tell(self, event: Event) -> None:
        self._events.append(event)

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        if self.input.at_end and not self._drops_space and (space := "".join(self._space)):
            self._space.clear()
            self._tell(Text(space))
        found, self._events = self._events, []
        return found
