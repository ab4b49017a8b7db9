"""The parser contract: joining events, and the hook ``register_output_parsers``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_plug import (
    CallArguments,
    CallEnd,
    CallStart,
    OutputParser,
    PluginError,
    PluginOptions,
    Plugins,
    Reasoning,
    Text,
)
from sglang_plug.contracts.text.parsers import Event, joined


def test_neighbours_of_one_kind_become_one() -> None:
    events: list[Event] = [
        Reasoning("a"), Reasoning("b"), Text("c"), Text("d"), CallStart(0, "f"), CallArguments(0, "{"),
        CallArguments(0, "}"), CallEnd(0), CallStart(1, "f"), CallArguments(1, "{}"), CallEnd(1), Text("e"),
    ]  # fmt: skip
    assert joined(events) == [
        Reasoning("ab"), Text("cd"), CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0), CallStart(1, "f"),
        CallArguments(1, "{}"), CallEnd(1), Text("e"),
    ]  # fmt: skip
    assert joined([CallArguments(0, "a"), CallArguments(1, "b"), Text("c"), Reasoning("d"), Text("e")]) == [
        CallArguments(0, "a"), CallArguments(1, "b"), Text("c"), Reasoning("d"), Text("e"),
    ]  # fmt: skip
    assert joined([]) == []


class Plain(OutputParser):
    """A parser that returns the whole output as text."""

    def feed(self, text: str) -> list[Event]:
        return [Text(text)]

    def finish(self) -> list[Event]:
        return []


def test_a_parser_suits_no_template_and_enforces_nothing_unless_it_says_so() -> None:
    assert not Plain.matches_template("<tool_call>")
    assert Plain.structure({"f": {}}, required=True, parallel=True) is None
    assert not Plain.needs_special_tokens


SOURCE = """
from sglang_plug import hookimpl
from sglang_plug.plugins.specs import {spec}

@hookimpl
def register_output_parsers():
    yield {spec}(name="mine", target="sglang_plug.contracts.text.parsers:{target}")
"""


def load(tmp_path: Path, spec: str, target: str) -> Plugins:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE.format(spec=spec, target=target))
    return Plugins.discover(PluginOptions(files=(str(file),)))


@pytest.mark.parametrize(
    ("spec", "kind"), [("ToolParserSpec", "tool-parser"), ("ReasoningParserSpec", "reasoning-parser")]
)
def test_register_output_parsers(tmp_path: Path, spec: str, kind: str) -> None:
    plugins = load(tmp_path, spec, "OutputParser")
    assert plugins.get(kind, "mine").load(OutputParser) is OutputParser
    with pytest.raises(PluginError, match="must be a subclass of OutputParser"):
        load(tmp_path, spec, "Text").get(kind, "mine").load(OutputParser)


def test_other_specs_are_refused(tmp_path: Path) -> None:
    (failure,) = load(tmp_path, "RouteSpec", "Text").failures
    assert "which is not a ToolParserSpec or ReasoningParserSpec" in failure.message
