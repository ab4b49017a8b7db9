from __future__ import annotations

from typing import Any

import pytest

from sglang_plug import CallArguments, CallEnd, CallStart, OutputParser, PluginError, Plugins, Text
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


class Lines(OutputParser):
    """``CALL name {...}`` on a line of its own."""

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


@pytest.mark.parametrize(
    ("parser", "message"),
    [
        (Empty, "an empty Text"),
        (Silent, "gave NoneType, not a list"),
        (Raising, "raised KeyError: .* in call 1"),
        (Uncounted, "call 0 begins, 1 is next"),
        (Endless, "call 1 begins, 1 is next|did not end"),
        (Quoting, "the arguments of call 0 are no JSON object"),
    ],
)
def test_a_broken_parser_fails_and_is_told_how(parser: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_output_parser(parser, calls=(GOOD,))


def test_a_parser_whose_answer_depends_on_the_cut_fails() -> None:
    with pytest.raises(AssertionError, match="Hasty fails .*cut as"):
        check_output_parser(Hasty, ("CALL f {}",))


def test_a_name_that_nobody_declares() -> None:
    with pytest.raises(PluginError, match="'hermse' is declared for 0 kinds"):
        check_output_parser("hermse")
    with pytest.raises(PluginError, match="'gpt-oss' is declared for 2 kinds of parsers; write KIND:NAME"):
        check_output_parser("gpt-oss")
