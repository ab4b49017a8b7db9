"""gpt-oss: messages with a channel and a recipient."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sglang_plug import Constraint, ConstraintError, ReasoningBlockMarks, ReasoningMarks

from .call_structures import (
    Form,
    Schemas,
    arguments,
    constraint,
    either,
    literal,
    one_or_more,
    optional,
    sequence,
    star,
    text,
    token,
)
from .json_text import EMPTY, Write, read_value
from .reader import Malformed, SequentialParser, Steps

CHANNEL, MESSAGE, START, CONSTRAIN, CALL = "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>", "<|call|>"
ENDS = ("<|end|>", "<|return|>", CALL)
RECIPIENT = re.compile(r"(?:^|\s)to=functions\.(\S+)")
NAME = re.compile(r"\S+")
THOUGHTS = "analysis"
ROLE = "assistant"
OPENING = f"{CHANNEL}{THOUGHTS}{MESSAGE}"
NEXT_MESSAGE = f"{ENDS[0]}{START}{ROLE}"
BLOCK = ReasoningBlockMarks((NEXT_MESSAGE, *ENDS, START), OPENING, repeats=True)


class Harmony(SequentialParser):
    """Splits an output into messages; subclasses handle function calls in ``read_call``."""

    needs_special_tokens = True

    def read(self) -> Steps[None]:
        """Read headers and bodies. The prompt has opened the first header; text without a header is plain text."""
        marker = yield from self._first()
        while marker:
            header, end = yield from self._until((MESSAGE, START, *ENDS))
            if end == MESSAGE:
                marker = yield from self._message(marker + header)
            elif end in ("", START):
                self.emit_text("" if header.strip() == ROLE else marker + header)
                marker = end
            else:
                marker = yield from self._between()

    def read_call(self, header: str, name: str) -> Steps[str]:
        """Read the body of a message to a function; returns the marker that opens the next part."""
        waiting = not (yield from self._object(name))
        while True:
            text, marker = self.input.before((START, *ENDS))
            if waiting:
                text = text.lstrip()
            if text and waiting:
                waiting = False
                self.emit_start(name)
            if text:
                self.emit_arguments(text)
            if marker or self.input.at_end:
                break
            yield
        if waiting:
            self.emit_start(name)
            self.emit_arguments(EMPTY)
        self.emit_end()
        return START if marker == START else (yield from self._between())

    def _object(self, name: str) -> Steps[bool]:
        """Read a JSON object as arguments, ignoring markers within its strings; False if none begins here."""
        yield from self.input.space()
        if (yield from self.input.peek()) != "{":
            return False
        self.emit_start(name)
        yield from self._value(self.emit_arguments)
        return True

    def _value(self, write: Write) -> Steps[None]:
        try:
            yield from read_value(self.input, write)
        except Malformed:
            pass  # the following text is passed on unchanged

    def _first(self) -> Steps[str]:
        source = self.input
        source.record()
        yield from source.space()
        for marker in (CHANNEL, START):
            if (yield from source.follows(marker)):
                source.recorded()
                return marker
        if (yield from source.follows("to=functions.")):
            return source.recorded()
        self.emit_text(source.recorded())
        return (yield from self._between())

    def _message(self, header: str) -> Steps[str]:
        before, _, channel = header.partition(CHANNEL)
        recipient = RECIPIENT.search(channel) or RECIPIENT.search(before.replace(START + ROLE, ""))
        if recipient is not None:
            return (yield from self.read_call(header, recipient.group(1)))
        emit = self.emit_reasoning if channel.split()[:1] == [THOUGHTS] else self.emit_text
        while True:
            text, marker = self.input.before((START, *ENDS))
            if text:
                emit(text)
            if marker or self.input.at_end:
                return marker if marker in ("", START) else (yield from self._between())
            yield

    def _between(self) -> Steps[str]:
        """Read text outside of messages; returns the marker that opens the next header."""
        return (yield from self.text_until(START, CHANNEL))

    def _until(self, markers: tuple[str, ...]) -> Steps[tuple[str, str]]:
        parts: list[str] = []
        while True:
            text, marker = self.input.before(markers)
            parts.append(text)
            if marker or self.input.at_end:
                return "".join(parts), marker
            yield


class HarmonyCalls(Harmony):
    """Parser of calls and reasoning."""

    @classmethod
    def matches_template(cls, template: str) -> bool:
        """Return True if the template writes channels."""
        return CHANNEL in template and MESSAGE in template

    @classmethod
    def structure(cls, functions: Schemas, *, required: bool, parallel: bool) -> Constraint:
        """Return messages to functions, with reasoning and texts between them if no call is required.

        The prompt has opened the header of the first message.
        """
        for name in functions:
            if not NAME.fullmatch(name):
                raise ConstraintError(f"the function {name!r} cannot be called in messages: its name has a blank")
        call = either(*(_call(name, schema) for name, schema in functions.items()))
        following = sequence(token(START), literal(ROLE))
        if required:
            return constraint(one_or_more(call, sequence(token(CALL), following), parallel=parallel))
        aside = either(_message(THOUGHTS), _message("commentary"))
        final = _message("final", optional(sequence(literal(" "), token(CONSTRAIN), literal("json"))))
        ended = sequence(aside, token(ENDS[0]))
        before = either(ended, sequence(call, token(CALL))) if parallel else ended
        messages = sequence(star(sequence(before, following)), either(aside, final, call))
        return constraint(either(messages, text(START, CHANNEL, not_beginning=r"[ \t\r\n]*to=functions\.")))


def _call(name: str, schema: Mapping[str, Any]) -> Form:
    header = (token(CHANNEL), literal(f"commentary to=functions.{name} "), token(CONSTRAIN), literal("json"))
    return sequence(*header, token(MESSAGE), arguments(schema))


def _message(channel: str, *more: Form) -> Form:
    return sequence(token(CHANNEL), literal(channel), *more, token(MESSAGE), text(START, *ENDS))


class HarmonyReasoning(Harmony):
    """Parser of reasoning; calls stay unchanged for the parser of calls."""

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        """Return the marks around an answer.

        An answer is the message of the final channel. Calls come at once, or after one reasoning message.
        """
        if prompt.rstrip().endswith(MESSAGE):
            return None
        if calls:
            return ReasoningMarks((NEXT_MESSAGE,), OPENING, block=BLOCK)
        final = f"{CHANNEL}final"
        return ReasoningMarks((f"{final}{MESSAGE}", f"{final} {CONSTRAIN}json{MESSAGE}"), block=BLOCK)

    def read_call(self, header: str, name: str) -> Steps[str]:
        """Pass the whole message on as text."""
        prefix = "" if header.startswith((START, CHANNEL)) else START + ROLE + " "
        self.emit_text(prefix + header + MESSAGE)
        self.emit_text((yield from self.input.space()))
        if (yield from self.input.peek()) == "{":
            yield from self._value(self.emit_text)
        body, marker = yield from self._until((START, *ENDS))
        self.emit_text(body + marker if marker != START else body)
        return START if marker == START else (yield from self._between())
