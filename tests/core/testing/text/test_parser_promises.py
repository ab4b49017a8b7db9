"""The conformance test of output parsers finds faults in what parsers declare besides their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sglang_plug import Constraint, OutputParser, Reasoning, ReasoningMarks, Text
from sglang_plug.testing import check_output_parser

from .test_parser import GOOD, THOUGHTS, Lines, Thoughts

FUNCTIONS = {"f": {"type": "object", "properties": {"x": {"type": "integer"}}, "description": "d"}}


class Typed(Lines):
    """A parser that knows the names of the functions."""

    names: tuple[str, ...] = ()

    @classmethod
    def for_functions(cls, functions: Mapping[str, Mapping[str, Any]]) -> OutputParser:
        parser = cls()
        parser.names = tuple(functions)
        return parser


def test_a_correct_parser_passes() -> None:
    check_output_parser(Typed, calls=(GOOD,), functions=FUNCTIONS)


class DropsWhatFollows(Lines):
    def read(self, line: str) -> list[Any]:
        return [event for event in super().read(line) if not (isinstance(event, Text) and self.calls == 2)]


class BeginsWithTheCall(Lines):
    """Loses the text before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Any] = []

    def read(self, line: str) -> list[Any]:
        events = super().read(line)
        if self.calls:
            return events
        self.before += events
        return []

    def finish(self) -> list[Any]:
        events = super().finish()
        return events if self.calls else self.before


class MarksSchemas(Typed):
    @classmethod
    def for_functions(cls, functions: Any) -> OutputParser:
        for schema in functions.values():
            schema["seen"] = True
        return cls()


class NeedsProperties(Typed):
    @classmethod
    def for_functions(cls, functions: Any) -> OutputParser:
        for schema in functions.values():
            list(schema["properties"].items())
        return cls()


class StructureFails(Lines):
    @classmethod
    def structure(
        cls, functions: Mapping[str, Mapping[str, Any]], *, required: bool, parallel: bool
    ) -> Constraint | None:
        raise NotImplementedError("no structure")


class NeedsTheMark(Lines):
    @classmethod
    def matches_template(cls, template: str) -> bool:
        return template.index("CALL") >= 0


class WaitsForTheEnd(Lines):
    def __init__(self) -> None:
        super().__init__()
        self.output = ""

    def feed(self, text: str) -> list[Any]:
        self.output += text
        return []

    def finish(self) -> list[Any]:
        return [*super().feed(self.output), *super().finish()]


@pytest.mark.planted_bug("tool-parser")
@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (DropsWhatFollows, "the text after the output is lost"),
        (BeginsWithTheCall, "the text before the output is lost|of plain text"),
        (MarksSchemas, "it changed the schemas of the caller"),
        (NeedsProperties, "with the schema {}: raised KeyError: 'properties'"),
        (StructureFails, r"structure\(\) with required=False, parallel=False: raised NotImplementedError"),
        (NeedsTheMark, r"matches_template\(''\): raised ValueError"),
        (WaitsForTheEnd, "only what may still become a marker is held back"),
    ],
)
def test_planted_bugs_are_named(parser: type[OutputParser], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_output_parser(parser, calls=(GOOD,))


class Marked(Thoughts):
    """A reasoning parser that declares its markers."""

    ends: tuple[str, ...] = ("]]",)

    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        return ReasoningMarks(ends=cls.ends, opening="[[")


def test_a_parser_that_names_its_markers_passes() -> None:
    check_output_parser(Marked, THOUGHTS)


class NamesAnotherEnd(Marked):
    ends = ("</think>",)


class NeedsAPrompt(Marked):
    @classmethod
    def marks(cls, prompt: str, *, calls: bool) -> ReasoningMarks | None:
        return ReasoningMarks(ends=cls.ends, opening=prompt[0] * 2)


class GivesWholeThoughts(Marked):
    """Returns reasoning only when it has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.thought = ""

    def feed(self, text: str) -> list[Any]:
        return self.gathered(super().feed(text))

    def gathered(self, events: list[Any]) -> list[Any]:
        self.thought += "".join(event.text for event in events if isinstance(event, Reasoning))
        others = [event for event in events if not isinstance(event, Reasoning)]
        return [*self.thoughts(), *others] if others or not self.inside else []

    def thoughts(self) -> list[Any]:
        thought, self.thought = self.thought, ""
        return [Reasoning(thought)] if thought else []

    def finish(self) -> list[Any]:
        events = self.gathered(super().finish())
        return [*self.thoughts(), *events]


@pytest.mark.planted_bug("reasoning-parser")
@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (NamesAnotherEnd, "names the end '</think>', which does not end the reasoning"),
        (NeedsAPrompt, r"marks\(''\): raised IndexError"),
        (GivesWholeThoughts, "only what may still become a marker is held back"),
    ],
)
def test_planted_bugs_of_reasoning_are_named(parser: type[OutputParser], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_output_parser(parser, THOUGHTS)
