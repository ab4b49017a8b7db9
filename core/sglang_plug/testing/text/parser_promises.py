"""Checks of what output parsers do besides splitting texts: schemas, class methods, markers, and text as it comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from sglang_plug.contracts.text.grammar import Constraint, ConstraintError
from sglang_plug.contracts.text.parsers import (
    CallStart,
    Event,
    OutputParser,
    Reasoning,
    ReasoningMarks,
    Text,
    joined,
)

Functions = Mapping[str, Mapping[str, Any]]
SURROUNDING = "Qq"
"""Letters that belong to no format."""
LONG_TEXT = "several words of text " * 60
HELD_BACK = 1000
"""Maximum number of characters that a parser may hold back of text, such as a line that may become a call."""
INVALID_SCHEMAS: tuple[Any, ...] = (
    {},
    {"type": "text"},
    {"properties": 1},
    {"type": "object", "properties": None, "required": "a"},
    {"type": "object", "properties": {"city": None, "days": {"type": ["nothing", 1]}}},
    {"$ref": "#/nowhere"},
)
"""Schemas of callers that are no schemas."""
TEMPLATES = ("", "{{ messages }}", "<", "{% if tools %}{{ tools | tojson }}{% endif %}é漢🙂")


def check_around(
    parser: type[OutputParser], functions: Functions, outputs: Sequence[str], calls: Sequence[str]
) -> None:
    """Text before an output, and after complete calls, is given, as text or as what it makes of the output."""
    texts = [("before", f"{SURROUNDING}.\n{output}") for output in (*outputs, *calls)]
    for where, text in (*texts, *(("after", f"{output}\n{SURROUNDING}.") for output in calls)):
        contents = "".join(getattr(event, "text", "") for event in read(parser, functions, text))
        assert SURROUNDING in contents, f"{parser.__name__} fails {text!r}: the text {where} the output is lost"


def check_schemas(parser: type[OutputParser], outputs: Sequence[str]) -> None:
    """Schemas are the caller's: they may be invalid, and are not changed."""
    for output in outputs:
        names = [event.name for event in read(parser, {}, output) if isinstance(event, CallStart)]
        for schema in INVALID_SCHEMAS:
            functions = {name: deepcopy(schema) for name in ("f", *names)}
            before = deepcopy(functions)
            where = f"{parser.__name__} fails {output!r} with the schema {schema}"
            read(parser, functions, output, where)
            assert functions == before, f"{where}: it changed the schemas of the caller"
    schema = {"type": "object", "description": "d", "properties": {"city": {"type": "string", "title": "t"}}}
    functions = {"weather": schema, "f": deepcopy(schema)}
    before = deepcopy(functions)
    parser.for_functions(functions)
    assert functions == before, f"{parser.__name__}.for_functions() changed the schemas of the caller"


def check_class_methods(parser: type[OutputParser], functions: Functions) -> None:
    """``matches_template`` answers for every template; ``structure`` gives a constraint or none, or refuses."""
    for template in TEMPLATES:
        matches = _called(
            f"{parser.__name__}.matches_template({template!r})", partial(parser.matches_template, template)
        )
        assert isinstance(matches, bool), (
            f"{parser.__name__}.matches_template({template!r}) returned {matches!r}, not True or False"
        )
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    schemas = dict(functions) or {"f": schema}
    for required in (False, True):
        for parallel in (False, True):
            before = deepcopy(schemas)
            where = f"{parser.__name__}.structure() with required={required}, parallel={parallel}"
            constraint = _called(
                where, partial(parser.structure, schemas, required=required, parallel=parallel), ConstraintError
            )
            assert constraint is None or isinstance(constraint, Constraint), f"{where} returned {constraint!r}"
            assert schemas == before, f"{where} changed the schemas of the caller"


def check_marks(parser: type[OutputParser]) -> None:
    """The markers that ``marks`` names are those that the parser separates reasoning by."""
    for prompt in ("", "no markers", "a prompt <"):
        where = f"{parser.__name__}.marks({prompt!r})"
        for calls in (False, True):
            marks = _called(where, partial(parser.marks, prompt, calls=calls))
            assert marks is None or isinstance(marks, ReasoningMarks), f"{where} returned {marks!r}"
        if marks is None or marks.block is not None or marks.opened:
            continue
        for end in marks.ends:
            output = f"{marks.opening}{SURROUNDING} why{end}yes"
            events = read(parser, {}, output)
            if not any(isinstance(event, Reasoning) for event in events):
                raise AssertionError(f"{where} names {marks.opening!r}, and {output!r} has no reasoning: {events}")
            reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
            assert end not in reasoning and "yes" not in reasoning, (
                f"{where} names the end {end!r}, which does not end the reasoning of {output!r}: {events}"
            )


def check_progress(parser: type[OutputParser], functions: Functions) -> None:
    """Text, and reasoning, are given as they come, but for what may become a marker."""
    marks = parser.marks("", calls=False)
    opening = marks.opening if marks is not None and marks.block is None else ""
    lines = "\n".join(LONG_TEXT.split())
    for text in (lines, f"{opening}{LONG_TEXT}") if opening else (lines,):
        made = parser.for_functions(functions)
        events = [event for start in range(0, len(text), 4) for event in made.feed(text[start : start + 4])]
        emitted = sum(len(event.text) for event in events if isinstance(event, Text | Reasoning))
        assert emitted >= len(text) - len(opening) - HELD_BACK, (
            f"{parser.__name__}.feed() of {len(text)} characters that are no call returned {emitted}: only what "
            "may still "
            "become a marker is held back"
        )


def read(parser: type[OutputParser], functions: Any, output: str, where: str = "") -> list[Event]:
    """Return the events of an output, or raise ``AssertionError`` for what the parser raises."""

    def events() -> list[Event]:
        made = parser.for_functions(functions)
        return joined([*made.feed(output), *made.finish()])

    result: list[Event] = _called(where or f"{parser.__name__} fails {output!r}", events)
    return result


def _called(where: str, call: Callable[[], Any], *allowed: type[Exception]) -> Any:
    try:
        return call()
    except allowed:
        return None
    except Exception as error:
        raise AssertionError(f"{where}: raised {type(error).__name__}: {error}") from error
