"""Parsers as sequential code: a generator that waits at the end of the available text."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from sglang_plug import CallArguments, CallEnd, CallStart, Event, OutputParser, Reasoning, Text

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Generator that waits for more text and returns ``T``."""

SPACE = re.compile(r"[ \t\r\n]*")


class Malformed(Exception):
    """The remaining text does not follow the format."""


@dataclass(frozen=True, slots=True)
class MarkerSearch:
    """The parts of a search for the first of some markers that do not depend on the text."""

    pattern: re.Pattern[str]
    """Matches a marker."""
    beginnings: frozenset[str]
    """The beginnings of all markers that are shorter than the marker."""
    longest: int
    """Characters of the longest marker."""

    @staticmethod
    @lru_cache(maxsize=256)
    def of(markers: tuple[str, ...]) -> MarkerSearch:
        """Return the search for ``markers``."""
        beginnings = frozenset(marker[:end] for marker in markers for end in range(1, len(marker)))
        return MarkerSearch(re.compile("|".join(map(re.escape, markers))), beginnings, max(map(len, markers)))


class Input:
    """Input text that arrives in pieces and is read once from the front."""

    def __init__(self) -> None:
        self._text, self._at, self._closed = "", 0, False
        self._record: list[str] | None = None

    def add(self, text: str) -> None:
        """Append text."""
        self._text, self._at = self._text[self._at :] + text, 0

    def close(self) -> None:
        """Mark the end of the text."""
        self._closed = True

    def record(self, first: str = "") -> None:
        """Start recording the consumed text."""
        self._record = [first]

    def recorded(self) -> str:
        """Stop recording and return the text consumed since ``record``."""
        result, self._record = "".join(self._record or ()), None
        return result

    def push_back(self, text: str) -> None:
        """Put ``text``, which has just been consumed, back to the front."""
        if len(text) <= self._at:
            self._at -= len(text)
        else:
            self._text, self._at = text + self._text[self._at :], 0

    def peek(self) -> Steps[str]:
        """Return the next character without consuming it; empty at the end of the output."""
        while self._at == len(self._text) and not self._closed:
            yield
        return self._text[self._at : self._at + 1]

    def take(self, count: int = 1) -> str:
        """Consume the next ``count`` characters, which must be available."""
        result = self._text[self._at : self._at + count]
        self._at += count
        if self._record is not None:
            self._record.append(result)
        return result

    def run(self, characters: re.Pattern[str]) -> Steps[str]:
        """Consume the longest run of ``characters``, a pattern of one repeated class."""
        results: list[str] = []
        yield from self.pass_on(characters, results.append)
        return "".join(results)

    def pass_on(self, characters: re.Pattern[str], write: Callable[[str], None]) -> Steps[None]:
        """Pass the longest run of ``characters`` on as it arrives."""
        while (yield from self.peek()):
            match = characters.match(self._text, self._at)
            if match is None or match.end() == self._at:
                return
            write(self.take(match.end() - self._at))

    def all(self) -> Steps[str]:
        """Consume all available text; empty at the end of the output."""
        yield from self.peek()
        return self.take(len(self._text) - self._at)

    def space(self) -> Steps[str]:
        """Consume blanks and line ends."""
        return (yield from self.run(SPACE))

    def follows(self, literal: str) -> Steps[bool]:
        """Consume ``literal`` if it comes next."""
        while not self._closed and len(self._text) - self._at < len(literal):
            if not literal.startswith(self._text[self._at :]):
                return False
            yield
        if self._text.startswith(literal, self._at):
            self.take(len(literal))
            return True
        return False

    def expect(self, literal: str) -> Steps[None]:
        """Consume ``literal``. Raises ``Malformed`` if something else comes."""
        if not (yield from self.follows(literal)):
            raise Malformed

    def before(self, markers: Sequence[str]) -> tuple[str, str]:
        """Consume the available text before the first of ``markers``, and the marker, if it has arrived.

        No marker may be a prefix of another.
        """
        search = MarkerSearch.of(tuple(markers))
        result = search.pattern.search(self._text, self._at)
        if result is not None:
            return self.take(result.start() - self._at), self.take(len(result.group()))
        available = len(self._text) - self._at
        return self.take(available if self._closed else available - self._held(search)), ""

    @property
    def at_end(self) -> bool:
        """Return True once everything has been consumed and no text will follow."""
        return self._closed and self._at == len(self._text)

    def _held(self, search: MarkerSearch) -> int:
        """Count the characters at the end that may begin a marker."""
        length = len(self._text)
        for start in range(max(self._at, length - search.longest + 1), length):
            if self._text[start:] in search.beginnings:
                return length - start
        return 0


class SequentialParser(OutputParser):
    """A parser whose format is implemented by ``read``."""

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
        """Read the whole output and emit its parts."""

    def feed(self, text: str) -> list[Event]:
        """Return the events that have become certain with ``text``."""
        self.input.add(text)
        return self._advance()

    def finish(self) -> list[Event]:
        """Return the remaining events."""
        self.input.close()
        return self._advance()

    def emit_text(self, text: str) -> None:
        """Emit text of the answer.

        White space next to a call is dropped, so white space at the end of ``text`` is held back.
        """
        kept = text.rstrip()
        if kept and self._drops_space:
            text, self._drops_space = text.lstrip(), False
            self._space.clear()
        if kept:
            body = text[: len(text.rstrip())]
            self._emit(Text("".join((*self._space, body))))
            self._space = [text[len(body) :]]
        else:
            self._space.append(text)

    def drop_space(self) -> None:
        """Drop the white space at the end of the text so far."""
        self._space.clear()

    def emit_reasoning(self, text: str) -> None:
        """Emit reasoning."""
        if text:
            self._emit(Reasoning(text))

    def emit_start(self, name: str, id: str | None = None) -> None:
        """Start a call; the recorded text is no longer text of the answer."""
        self.input.recorded()
        self._space.clear()
        self._drops_space, self._is_open = True, True
        self._emit(CallStart(self._calls, name, id))

    def emit_arguments(self, text: str) -> None:
        """Emit more of the call's arguments."""
        if text:
            self._emit(CallArguments(self._calls, text))

    def emit_end(self) -> None:
        """End the call."""
        self._is_open = False
        self._emit(CallEnd(self._calls))
        self._calls += 1

    def text_until(self, *markers: str) -> Steps[str]:
        """Emit text up to one of ``markers``, which is consumed and returned; empty at the end of the output."""
        while True:
            text, marker = self.input.before(markers)
            if text:
                self.emit_text(text)
            if marker or self.input.at_end:
                return marker
            yield

    def emit_rest(self) -> Steps[None]:
        """Emit the rest as text."""
        while text := (yield from self.input.all()):
            self.emit_text(text)

    def attempt(self, steps: Steps[None], opening: str = "") -> Steps[bool]:
        """Read a call. If it is malformed, the text since ``opening`` is emitted as text, or the started call ends."""
        self.input.record(opening)
        try:
            yield from steps
        except Malformed:
            if self._is_open:
                self.emit_end()
            self.emit_text(self.input.recorded())
            return False
        self.input.recorded()
        return True

    def _emit(self, event: Event) -> None:
        self._events.append(event)

    def _advance(self) -> list[Event]:
        next(self._steps, None)
        if self.input.at_end and not self._drops_space and (space := "".join(self._space)):
            self._space.clear()
            self._emit(Text(space))
        result, self._events = self._events, []
        return result
