from __future__ import annotations

from typing import Any

import pytest
import torch

from sglang_plug import Constraint, ConstraintError, GrammarBackend, Plugins, Vocabulary
from sglang_plug.testing import check_grammar_backend
from sglang_plug.testing.text.grammars.grammar import small_vocabulary
from tests.builtin_backends.small_outputs import start, writes

MUST = (
    "json_schema: annotations",
    "json_schema: annotations in definitions",
    "json_schema: nullable",
    "json_schema: discriminator",
    "json_schema: optional properties",
    "json_schema: additional properties",
    "json_schema: number",
    "json_schema: nested",
    "json_object: any object",
    "json_schema: minimum and maximum",
    "regex: alternatives",
    "regex: characters of many bytes",
    "choice: one inside another",
)


def make(vocabulary: Vocabulary | None = None, **options: Any) -> GrammarBackend:
    """Return the backend for a small vocabulary."""
    pytest.importorskip("outlines_core")
    component = Plugins.discover().get("grammar", "outlines")
    chosen = type(component.settings())(**options)
    backend: GrammarBackend = component.load(GrammarBackend)(vocabulary or small_vocabulary(), chosen)
    return backend


def test_it_keeps_the_contract() -> None:
    pytest.importorskip("outlines_core")
    check_grammar_backend("outlines", must=MUST)


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}', "refers to itself"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems at # cannot be enforced"),
        ("regex", "a\\0b", "U\\+0000 cannot be written"),
        ("regex", "a[\\0]b", "U\\+0000 cannot be written"),
        ("choice", '["a\\u0000"]', "U\\+0000 cannot be written"),
        ("ebnf", 'root ::= "a"', "a ebnf cannot be enforced"),
    ],
)
def test_refusals_say_why(kind: Any, source: str, message: str) -> None:
    backend, constraint = make(), Constraint(kind, source)
    with pytest.raises(ConstraintError, match=message) as raised:
        backend.compile(constraint)
    assert backend.refuses(constraint) == str(raised.value)


def test_no_token_holds_the_mark() -> None:
    grammar = start(make(), "regex", "[^a]*")
    assert not writes(grammar, "b\0")
    assert writes(start(make(), "regex", "[^a]*"), "b\x01")


def test_expressions_whose_search_would_explode_are_compiled() -> None:
    """An unanchored search for the expression would need 2 ** 60 states."""
    assert writes(start(make(), "regex", "a[ab]{0,60}"), "ab" * 20)


@pytest.mark.parametrize("schema", [{"type": "object"}, {"properties": {"a": {}}, "required": ["a"]}])
def test_values_of_any_kind_are_nested_to_a_bounded_depth(schema: Any) -> None:
    for depth, texts in enumerate(
        [
            ('{"a": 1}', '{"a": {}}', '{"a": []}', '{"a": null}'),
            ('{"a": [1, {}]}', '{"a": {"b": "c"}}'),
            ('{"a": [[1]]}', '{"a": {"b": {"c": []}}}'),
            ('{"a": [[[1]]]}',),
        ]
    ):
        for max_depth in range(4):
            grammar = make(any_depth=max_depth)
            assert all(writes(start(grammar, "json_schema", schema), text) is (depth <= max_depth) for text in texts)


def test_any_object_is_an_object() -> None:
    assert not writes(start(make(), "json_object", ""), "[1]")
    assert writes(start(make(), "json_object", ""), '{"a": [{"b": {}}], "c": true}')


def test_blanks_only_where_they_are_wanted() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for text, narrow, wide in (("[1, 2]", True, True), ("[1,2]", False, True), ("[1,     2]", False, False)):
        assert writes(start(make(), "json_schema", schema), text) is narrow
        assert writes(start(make(any_whitespace=True, max_whitespace=3), "json_schema", schema), text) is wide


def test_a_mask_may_need_one_more_word_inside() -> None:
    pieces = [b"", *(bytes([index]) for index in range(1, 256))]
    grammar = start(make(Vocabulary(pieces, (0,))), "regex", "a?[^\\x00-\\x1f]")
    mask = torch.full((1, 8), 7, dtype=torch.int32)
    grammar.fill(mask, 0)
    assert mask[0].tolist()[:4] == [0, -1, -1, -1]
    assert grammar.accept(ord("b"))
    assert grammar.ended


def test_more_cannot_be_taken_back_than_was_accepted() -> None:
    grammar = start(make(), "choice", ["ab"])
    assert grammar.accept(ord("a") + 2)
    with pytest.raises(ValueError, match="cannot take back 2 of 1 tokens"):
        grammar.rollback(2)
    grammar.rollback(1)
    assert grammar.accept(ord("a") + 2)
