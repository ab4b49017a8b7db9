from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_plug import Constraint, ConstraintError, GrammarBackend, Plugins, Vocabulary
from sglang_plug.testing import check_grammar_backend
from sglang_plug.testing.text.grammars.grammar import small_vocabulary
from tests.builtin_backends.small_outputs import start, writes

MUST = (
    "json_schema: annotations",
    "json_schema: annotations in definitions",
    "json_schema: nullable",
    "json_schema: discriminator",
    "json_schema: allOf",
    "json_schema: anyOf next to properties",
    "json_schema: multipleOf",
    "json_schema: pattern and length",
    "json_schema: patternProperties",
    "json_schema: number of properties",
    "json_schema: $ref to itself",
    "json_schema: oneOf, apart",
    "json_schema: format date",
    "structural_tag: one call",
    "ebnf: balanced parentheses",
    "ebnf: sums",
)
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER


@pytest.fixture(scope="module")
def make() -> Callable[..., GrammarBackend]:
    """Return ``make(**settings)``, which builds the backend for a small vocabulary."""
    pytest.importorskip("llguidance")
    component = Plugins.discover().get("grammar", "llguidance")

    def build(vocabulary: Vocabulary | None = None, **options: Any) -> GrammarBackend:
        chosen = type(component.settings())(**options)
        backend: GrammarBackend = component.load(GrammarBackend)(vocabulary or small_vocabulary(), chosen)
        return backend

    return build


def test_it_keeps_the_contract(make: Callable[..., GrammarBackend]) -> None:
    check_grammar_backend("llguidance", must=MUST)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "array", "uniqueItems": True}, "the keyword 'uniqueItems' at # cannot be enforced"),
        ({"properties": {"a": {"not": {}}}}, "the keyword 'not' at #/properties/a cannot be enforced"),
        ({"anyOf": [{"type": "null"}, {"contains": {}}]}, "the keyword 'contains' at #/anyOf/1 cannot be enforced"),
        ({"type": "string", "format": "regex"}, "the format 'regex' at #"),
        ({"type": "string", "format": "time", "pattern": "a"}, "the format 'time' at #"),
        ({"$ref": "http://example.org/schema"}, "must point into the same schema"),
        ({"$ref": "#/default", "default": {"not": {}}}, "the keyword 'not' at #/default cannot be enforced"),
        ({"type": "number", "minimum": 2, "exclusiveMinimum": True}, "exclusiveMinimum at # must be a number"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "minimum|min"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        ({"minLength": "a"}, "minLength at # is malformed"),
        ({"type": [{}]}, "the type .* at # is unknown"),
        ({"minProperties": 2, "required": ["a"]}, "minProperties at # cannot be enforced beyond"),
        ({"required": [1]}, "required at # must hold names"),
        ({"items": {"items": {"type": "text"}}}, "the type 'text' at #/items/items is unknown"),
    ],
)
def test_refusals_name_what_stands_where(
    make: Callable[..., GrammarBackend], schema: dict[str, Any], message: str
) -> None:
    backend, constraint = make(), Constraint("json_schema", json.dumps(schema))
    with pytest.raises(ConstraintError, match=message) as raised:
        backend.compile(constraint)
    assert backend.refuses(constraint) == str(raised.value)


def test_deep_and_large_schemas_are_refused(make: Callable[..., GrammarBackend]) -> None:
    deep: Any = {"type": "null"}
    for _ in range(80):
        deep = {"items": deep}
    large = {"properties": {str(index): {} for index in range(20_000)}}
    for schema in (deep, large):
        assert "too large" in str(make().refuses(Constraint("json_schema", json.dumps(schema))))
    assert make().refuses(Constraint("json_schema", "[" * 100_000)) is not None


def test_names_of_keywords_are_no_keywords_where_they_name_something(make: Callable[..., GrammarBackend]) -> None:
    values = {"not": 1, "format": "time", "$schema": None}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"not": {"type": "integer"}, "format": {"const": "time"}, "$schema": {"type": "null"}},
        "required": list(values),
        "additionalProperties": False,
    }
    assert writes(start(make(), "json_schema", {**schema, "type": "object"}), json.dumps(values))


def test_blanks_only_where_they_are_wanted(make: Callable[..., GrammarBackend]) -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    for text, narrow, wide in (
        ("[1, 2]", True, True),
        ("[1,2]", False, True),
        ("[ 1 ,\n2 ]", False, True),
        ("[1,     2]", False, False),
    ):
        assert writes(start(make(), "json_schema", schema), text) is narrow
        assert writes(start(make(any_whitespace=True, max_whitespace=3), "json_schema", schema), text) is wide


def test_a_mask_may_need_one_more_word_inside(make: Callable[..., GrammarBackend]) -> None:
    pieces = [*(bytes([index]) for index in range(255)), b""]
    grammar = start(make(Vocabulary(pieces, (255,))), "choice", ["ab"])
    mask = torch.full((1, 8), -1, dtype=torch.int32)
    grammar.fill(mask, 0)
    assert mask[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 0]


SCALARS = st.one_of(
    st.builds(
        lambda minimum, size, step: {
            "type": "integer",
            "minimum": minimum,
            "maximum": minimum + size,
            "multipleOf": step,
        },
        st.integers(-200, 200),
        st.integers(0, 300),
        st.integers(1, 9),
    ),
    st.sampled_from(["^a+$", "b", "^[^x]*$", "[0-9]{2}$", r"^\w\s\S$", r"\D", "^(a|b$)", r"\.", "^$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.sampled_from(["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.sampled_from(
        [{"type": "boolean"}, {"const": {"a": [1.5]}}, {"enum": [1, "é", None]}, {"type": ["null", "array"]}]
    ),
)
SCHEMAS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.builds(
            lambda properties, required, more: {
                "type": "object",
                "properties": properties,
                "required": sorted(required),
                "additionalProperties": more,
            },
            st.dictionaries(st.sampled_from(["a", "ab", 'q"', "é"]), inner, max_size=3),
            st.sets(st.sampled_from(["a", "ab", "x"]), max_size=2),
            st.booleans() | inner,
        ),
        st.builds(
            lambda first, items, minimum: {"type": "array", "prefixItems": first, "items": items, "minItems": minimum},
            st.lists(inner, min_size=1, max_size=2),
            inner,
            st.integers(0, 3),
        ),
        st.lists(inner, min_size=2, max_size=2).map(lambda both: {"anyOf": both}),
        st.lists(inner, min_size=2, max_size=2).map(lambda both: {"allOf": both}),
    ),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None)
@given(schema=SCHEMAS, chance=st.randoms(use_true_random=False))
def test_whatever_is_written_is_valid(make: Callable[..., GrammarBackend], schema: Any, chance: Any) -> None:
    backend, constraint = make(), Constraint("json_schema", json.dumps(schema))
    if backend.refuses(constraint) is not None:
        return
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    grammar, text = backend.load(constraint, backend.compile(constraint))(), b""
    mask = torch.zeros(1, backend.vocabulary.words, dtype=torch.int32)
    for _ in range(100):
        if grammar.may_end:
            validator.validate(json.loads(text))
        grammar.fill(mask, 0)
        bits = (mask[0][:, None] >> torch.arange(32)) & 1
        allowed = bits.flatten().nonzero().flatten().tolist()
        assert allowed or grammar.may_end
        if not allowed:
            break
        closing = [token for token in allowed if backend.vocabulary.pieces[token][:1] in (b'"', b"]", b"}")]
        token = chance.choice(closing if closing and chance.random() < 0.5 else allowed)
        assert grammar.accept(token)
        text += backend.vocabulary.pieces[token]
