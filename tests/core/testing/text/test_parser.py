from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, PluginError, Plugins, Reasoning, Text
from sglang_plug.testing import check_output_parser

CALLS = {
    "hermes": '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    "pythonic": '[f(x=1), g(y="}")]',
    "mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]',
    "llama3": '{"name": "f", "parameters": {"x": 1}}',
}


@pytest.mark.parametrize("name", [*Plugins.discover().names("tool-parser")])
def test_the_parsers_of_calls_pass(name: str) -> None:
    check_output_parser(
        f"tool-parser:{name}", ("Well. ", *CALLS.values()), calls=(CALLS[name],) if name in CALLS else ()
    )


@pytest.mark.parametrize(
    "key", ["tool-parser:qwen25", "tool-parser:granite", "reasoning-parser:granite", "reasoning-parser:qwen3"]
)
def test_built_in_parsers_that_give_nothing_out_at_the_end_fail(key: str) -> None:
    kind, _, name = key.partition(":")
    parser = Plugins.discover().get(kind, name).load(OutputParser)
    silent = type(parser.__name__, (parser,), {"finish": lambda self: []})
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    with pytest.raises(AssertionError, match="of plain text|loses text that was held back"):
        check_output_parser(silent, [f"a plan</think>{call} and a < b"])


class Lines(OutputParser):
    """A correct parser of calls in the form ``CALL name {...}`` on a line of their own."""

    def __init__(self) -> None:
        self.held, self.calls = "", 0

    def feed(self, text: str) -> list[Any]:
        *lines, self.held = (self.held + text).split("\n")
        return [event for line in lines for event in self.read(f"{line}\n")]

    def finish(self) -> list[Any]:
        return self.read(self.held)

    def read(self, line: str) -> list[Any]:
        if not line.startswith("CALL ") or line.count(" ") < 2:
            return [Text(line)] if line else []
        _, name, arguments = line.rstrip("\n").split(" ", 2)
        index, self.calls = self.calls, self.calls + 1
        return [CallStart(index, name), CallArguments(index, arguments), CallEnd(index)]


GOOD = 'CALL f {"x": 1}\nand CALL\nCALL g {}'


def test_a_parser_of_ours_passes() -> None:
    check_output_parser(Lines, calls=(GOOD,))


class Hasty(Lines):
    def feed(self, text: str) -> list[Any]:
        return self.read(text) if "CALL" in text else [Text(text)] if text else []


class Empty(Lines):
    def finish(self) -> list[Any]:
        return [Text("")]


class Silent(Lines):
    def finish(self) -> Any:
        return None


class Raising(Lines):
    def feed(self, text: str) -> list[Any]:
        if "{" in text:
            raise KeyError("{")
        return super().feed(text)


class Uncounted(Lines):
    def read(self, line: str) -> list[Any]:
        self.calls = 0
        return super().read(line)


class Endless(Lines):
    def read(self, line: str) -> list[Any]:
        return [event for event in super().read(line) if not isinstance(event, CallEnd)]


class Quoting(Lines):
    def read(self, line: str) -> list[Any]:
        actual = super().read(line)
        return [
            CallArguments(event.index, f"'{event.text}'") if isinstance(event, CallArguments) else event
            for event in actual
        ]


class Forgetful(Lines):
    """Loses text at the end that could have become a call."""

    def feed(self, text: str) -> list[Any]:
        self.held += text
        ready, _, tail = self.held.partition("<")
        self.held = f"<{tail}" if "<" in self.held else ""
        return [Text(ready)] if ready else []

    def finish(self) -> list[Any]:
        return []


class Rereading(Lines):
    """Reads the whole output again for each piece, which takes quadratic time."""

    def __init__(self) -> None:
        super().__init__()
        self.output = ""

    def feed(self, text: str) -> list[Any]:
        self.output += text
        self.lines = sum(character == "\n" for character in self.output)
        return super().feed(text)


class DropsTheRest(Lines):
    """Loses the text at the end if there was a call."""

    def finish(self) -> list[Any]:
        return [] if self.calls else super().finish()


class NoBlankLines(Lines):
    def read(self, line: str) -> list[Any]:
        return super().read(line) if line.strip() else []


class DropsLastLineBreaks(Lines):
    """Holds line breaks back in case a call follows, and loses them at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.breaks = ""

    def read(self, line: str) -> list[Any]:
        if not line.strip():
            self.breaks += line
            return []
        held, self.breaks = self.breaks, ""
        return [*([Text(held)] if held else []), *super().read(line)]


class Recursive(Lines):
    """Reads arguments with a recursive parser, and does not expect a ``RecursionError``."""

    def read(self, line: str) -> list[Any]:
        try:
            json.loads(line[line.find("{") :].strip())
        except ValueError:
            return [Text(line)] if line else []
        return super().read(line)


class Shared(Lines):
    """Keeps incomplete lines in a dictionary that all instances share."""

    parts: ClassVar[dict[str, str]] = {}

    @property
    def held(self) -> str:
        return self.parts.get("held", "")

    @held.setter
    def held(self, text: str) -> None:
        self.parts["held"] = text


@pytest.mark.planted_bug("tool-parser")
@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (Empty, "an empty Text"),
        (Silent, "returned NoneType, not a list"),
        (Raising, "raised KeyError: .* in call 1"),
        (Uncounted, "call 0 begins, 1 is next"),
        (Endless, "call 1 begins, 1 is next|did not end"),
        (Quoting, "the arguments of call 0 are no JSON object"),
        (Rereading, r"Rereading.feed\(\) of the characters of outputs in its format: time grows with the power"),
        (DropsTheRest, r"fails 'CALL f .*\\na': .* as text, and 'a' .* loses text that was held back"),
        (NoBlankLines, r"fails 'a\\n\\nb': of plain text, .* give only 'a\\nb'"),
        (DropsLastLineBreaks, r"fails 'a\\n\\n': of plain text, .* give only 'a\\n'"),
        (Recursive, r"with 20000 nested \[\] at 7: raised RecursionError"),
        (Shared, "two instances that are used in turn disturb each other"),
    ],
)
def test_a_broken_parser_fails_and_is_told_how(parser: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_output_parser(parser, calls=(GOOD,))


@pytest.mark.planted_bug("tool-parser")
def test_a_parser_that_loses_text_fails() -> None:
    with pytest.raises(AssertionError, match=r"Forgetful fails '(<|a < b)'"):
        check_output_parser(Forgetful)


@pytest.mark.planted_bug("tool-parser")
def test_a_parser_whose_answer_depends_on_the_cut_fails() -> None:
    with pytest.raises(AssertionError, match="Hasty fails .*cut as"):
        check_output_parser(Hasty, ("CALL f {}",))


class Thoughts(OutputParser):
    """A correct reasoning parser, for reasoning in ``[[...]]`` at the beginning."""

    opening, end = "[[", "]]"

    def __init__(self) -> None:
        self.held = ""
        self.inside: bool | None = None  # not known yet

    def feed(self, text: str) -> list[Any]:
        self.held += text
        if self.inside is None:
            if len(self.held) < len(self.opening) and self.opening.startswith(self.held):
                return []
            self.inside = self.held.startswith(self.opening)
            self.held = self.held.removeprefix(self.opening)
        events = list[Any]()
        if self.inside and self.end in self.held:
            thought, _, self.held = self.held.partition(self.end)
            self.inside = False
            events += self.events(Reasoning, thought)
        kept = self.inside and self.held.endswith(self.end[0])
        ready, self.held = (self.held[:-1], self.held[-1:]) if kept else (self.held, "")
        return events + self.events(Reasoning if self.inside else Text, ready)

    def events(self, kind: Any, text: str) -> list[Any]:
        return [kind(text)] if text else []

    def finish(self) -> list[Any]:
        return self.events(Reasoning if self.inside else Text, self.held)


THOUGHTS = ("[[a plan]]an answer", "[[a plan", "[[a]", "no thoughts [[ here ]]", "[[]]", "[[a]]b]]")


def test_a_parser_of_reasoning_passes() -> None:
    check_output_parser(Thoughts, THOUGHTS)


class MarksLeak(Thoughts):
    """Does not wait for the second character of the end marker."""

    def feed(self, text: str) -> list[Any]:
        events = super().feed(text)
        held, self.held = self.held if self.inside else "", "" if self.inside else self.held
        return events + self.events(Reasoning, held)


class OpensLate(Thoughts):
    """Recognises the opening marker only if it is in the first piece."""

    def feed(self, text: str) -> list[Any]:
        if self.inside is None and text:
            self.inside, text = text.startswith(self.opening), text.removeprefix(self.opening)
        return super().feed(text)


class DropsTheCutOff(Thoughts):
    def finish(self) -> list[Any]:
        return [] if self.inside is None else super().finish()


class DropsTheEnd(Thoughts):
    """Loses a partial end marker at the end of the output."""

    def finish(self) -> list[Any]:
        return [] if self.inside else super().finish()


class EmptyThought(Thoughts):
    def events(self, kind: Any, text: str) -> list[Any]:
        return [kind(text)]


class FailsWithoutEnd(Thoughts):
    def finish(self) -> list[Any]:
        if self.inside:
            raise ValueError("the reasoning has no end")
        return super().finish()


class OneThought(Thoughts):
    """Keeps its state in a dictionary that all instances share."""

    state: ClassVar[dict[str, Any]] = {"inside": None}

    @property
    def inside(self) -> Any:
        return self.state["inside"]

    @inside.setter
    def inside(self, value: Any) -> None:
        self.state["inside"] = value


@pytest.mark.planted_bug("reasoning-parser")
@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (MarksLeak, "cut as"),
        (OpensLate, "cut as"),
        (DropsTheCutOff, r"fails '\[': .* finish\(\) loses text that was held back"),
        (DropsTheEnd, r"fails '\[\[a plan\]': .* as reasoning.* loses text"),
        (EmptyThought, "an empty (Text|Reasoning)"),
        (FailsWithoutEnd, "raised ValueError: the reasoning has no end"),
        (OneThought, "disturb each other|cut as"),
    ],
)
def test_a_broken_parser_of_reasoning_fails(parser: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_output_parser(parser, THOUGHTS)


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="'hermse' is declared for 0 kinds"):
        check_output_parser("hermse")
    with pytest.raises(PluginError, match="'gpt-oss' is declared for 2 kinds of parsers; write KIND:NAME"):
        check_output_parser("gpt-oss")
