"""Forced text is requested only from grammars that cannot force text without end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sglang_plug_backends.grammars.json_schema.schema import schema_to_ebnf
from sglang_plug_backends.xgrammar.forced_text import forces_only_short_text, tag_forces_only_short_text
from sglang_plug_backends.xgrammar.settings import XGrammarSettings


def doubled(times: int) -> str:
    """Return a grammar whose rule ``r0`` has one text, of two to the power of ``times`` characters."""
    return "".join(f"r{at} ::= r{at + 1} r{at + 1}\n" for at in range(times)) + f'r{times} ::= "a"\n'


SHORT = [
    'root ::= "a" root | ""',
    'root ::= root "a" | "a"',
    f'root ::= "{"b" * 300}" v\nv ::= "[" v "]" | "x"',
    f"root ::= r0\n{doubled(14)}",
]
LONG = [
    'root ::= "a" root | root "b"',
    'root ::= [xy] l\nl ::= "a" l',
    f"root ::= r0\n{doubled(15)}",
    f'root ::= "x" | "y" r0\n{doubled(60)}',
    'root ::= "x" | "a"{100000,} "y"',
    f'root ::= "(" root "{"b" * 300}" | "x"',
    'root ::= "no grammar',
]


@pytest.mark.parametrize("source", SHORT, ids=lambda source: source[:30])
def test_short(source: str) -> None:
    assert forces_only_short_text(source)


@pytest.mark.parametrize("source", LONG, ids=lambda source: source[:30])
def test_long_in_any_branch(source: str) -> None:
    assert not forces_only_short_text(source)


def test_schemas_are_short() -> None:
    whitespace = XGrammarSettings().whitespace
    many = {f"property_{at}": {"type": "integer"} for at in range(100)}
    node = {"type": "object", "properties": {"next": {"$ref": "#"}, "name": {"type": "string"}}, "required": ["name"]}
    for schema in ({"type": "object"}, {"type": "object", "properties": many, "required": list(many)}, node):
        assert forces_only_short_text(schema_to_ebnf(json.dumps(schema), whitespace))


def test_tags_are_as_long_as_their_grammars() -> None:
    def tag(*grammars: str) -> str:
        elements = [{"type": "grammar", "grammar": grammar} for grammar in grammars]
        return json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": elements}})

    assert tag_forces_only_short_text(tag(SHORT[0], SHORT[1]))
    assert not tag_forces_only_short_text(tag(SHORT[0], LONG[0]))
    assert not tag_forces_only_short_text(tag(f'root ::= "{"a" * 20_000}"'))


def test_a_backend_forces_what_is_short_and_nothing_else(backend: Any) -> None:
    assert backend("ebnf", 'root ::= "abc" [xy]').begin().forced() == b"abc"
    assert backend("ebnf", f"root ::= r0\n{doubled(20)}").begin().forced() == b""
    wrapped = {"type": "grammar", "grammar": f"root ::= r0\n{doubled(20)}"}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "", "content": wrapped, "end": "."}}
    assert backend("structural_tag", tag).begin().forced() == b""
