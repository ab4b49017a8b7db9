"""Every text of a schema's grammar is valid; keywords that are not enforced are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sglang_plug_backends.grammars.json_schema.formats import FORMATS
from sglang_plug_backends.grammars.json_schema.keywords import ANNOTATIONS, BY_TYPE, STANDALONE

INTEGER, STRING = {"type": "integer"}, {"type": "string"}

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 5, 7, 10, 15, 100, -5, 1.5, 0.5, -0.5, 10.5,
    "", "a", "b", "ab", "abc", "abcd", "aaaa", "x", "1", "12", "é", "éé", "日本", "😀", 'a"b', "a\\b", "a\nb", "a/b",
    "2020-01-01", "2020-02-30", "not", "12:00:00Z", "2020-01-01T00:00:00Z", "a@b.co", "127.0.0.1",
    "256.1.1.1", "\u2028",
    [], [1], [1, 2], [1, 1], [1, 2, 3], [1, 2, 3, 4], ["a"], ["a", "b"], [1, "a"], [1, "a", 2], [None], [[1]], [{}],
    {}, {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": "x"}, {"a": 1, "c": 3},
    {"a": 1, "c": "x"}, {"c": "x"}, {"c": 3}, {"a": None}, {"a": {"a": 1}}, {"a": {"a": {"a": 1}}}, {"x1": 1},
    {"x1": "s"},
    {"a": 1, "b": 2, "c": 3}, {"ab": 1}, {"a": []}, {"a": [1]}, {"a": {"b": 1}}, {"a": {}}, {"": 1}, {"kind": "cat"},
]  # fmt: skip
TEXTS = [
    '{"a": 1, "a": "x"}', '{"a": "x", "a": 1}', '{"c": "x", "c": 1}', "01", "1e5", "1.0", "-0", "1e-5", ".5", "+1",
    '"\\u0061"', '"\\ud800"', '{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}', '"\t"', '"a\tb"', '"\x01"', '"\x7f"',
    "NaN", "Infinity", "1e999", "[1,]", "[1 2]", '{"a" 1}', "'a'", '{a: 1}', "", " ", "[", '"', "tru", "1" * 5000,
]  # fmt: skip

ENFORCED: list[tuple[Any, list[str], list[str]]] = [  # schema, texts that must be allowed, texts that must not
    ({}, ["1", '"a"', '{"a": [1, null]}'], ["[1,]"]),
    ({"type": "object"}, ["{}", '{"a": 1}'], ["[]"]),
    ({"type": ["string", "null"]}, ['"a\\nb"', "null"], ["1"]),
    ({"type": "boolean"}, ["true", "false"], ["1"]),
    ({"type": "integer"}, ["0", "-1", "100"], ["01", "1.5", "1e5"]),
    ({"type": "number"}, ["0.5", "-1.5", "1e-5"], ["1e999", "1."]),
    ({"type": "string", "minLength": 1}, ['"a"', '"a\\"b"'], ['""']),
    ({"type": "string", "minLength": 2}, ['"éé"'], ['"é"', '"a\tb"']),
    ({"type": "string", "maxLength": 2}, ['"日本"', '""'], ['"abc"', '"\t"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"abc"'], ['"a"', '"abcd"']),
    ({"type": "string", "maxLength": 0}, ['""'], ['"a"']),
    ({"type": "string", "pattern": "^a.b$"}, ['"a/b"'], ['"ab"']),
    ({"type": "string", "pattern": "b"}, ['"abc"'], ['"a"']),
    ({"type": "string", "pattern": '^a"b$'}, ['"a\\"b"'], ['"a"b"']),
    ({"type": "string", "pattern": "^a\\\\b|^1$"}, ['"a\\\\b"', '"1"'], ['"12"']),
    ({"type": "string", "pattern": "\\n"}, ['"a\\nb"'], ['"ab"']),
    ({"type": "string", "format": "date"}, ['"2020-01-01"'], ['"2020-02-30"']),
    ({"type": "string", "format": "ipv4"}, ['"127.0.0.1"'], ['"256.1.1.1"']),
    ({"type": "integer", "minimum": 2, "maximum": 10}, ["2", "7", "10"], ["1", "15", "-5"]),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 5}, ["2", "3"], ["1", "5"]),
    ({"type": "integer", "minimum": 1.5}, ["2"], ["1"]),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 1.5}, ["-0.5", "0", "0.5", "1"], ["-1", "1.5"]),
    ({"minimum": 2}, ["3"], ["1"]),
    ({"enum": [1, "a", None, {"a": 1}, [1, 2], 1.5]}, ["1", '"a"', "null", '{"a": 1}', "[1, 2]", "1.5"], ["2"]),
    ({"type": "integer", "enum": [1, "a"]}, ["1"], ['"a"']),
    ({"const": {"a": 1, "b": 2}}, ['{"a": 1, "b": 2}'], ['{"a": 1}']),
    ({"const": 'a"b'}, ['"a\\"b"'], []),
    ({"type": "object", "properties": {"a": INTEGER}}, ["{}", '{"a": 1}'], ['{"a": "x"}']),
    ({"properties": {"a": INTEGER, "b": INTEGER}, "required": ["b"]}, ['{"a": 1, "b": 2}', '{"b": 1}'], ['{"a": 1}']),
    ({"type": "object", "required": ["a"]}, ['{"a": null}'], ["{}"]),
    ({"properties": {"a": INTEGER}, "required": ["c"], "additionalProperties": STRING}, ['{"c": "x"}'], ['{"c": 3}']),
    (
        {"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING},
        ["{}", '{"a": 1}', '{"c": "x"}', '{"a": 1, "c": "x"}'],
        ['{"a": "x"}', '{"\\u0061": "x"}', '{"a": 1, "\\u0061": "x"}'],
    ),
    (
        {"type": "object", "properties": {"a": INTEGER, "ab": INTEGER, "": INTEGER}, "additionalProperties": STRING},
        ['{"x1": "s"}', '{"ab": 1}'],
        ['{"a": "x"}'],
    ),
    ({"type": "object", "additionalProperties": INTEGER}, ["{}", '{"a": 1, "b": 2}'], ['{"a": "x"}']),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
    ({"properties": {"a": False, "b": INTEGER}}, ["{}", '{"b": 1}'], ['{"a": 1}']),
    ({"properties": {"a": INTEGER}, "required": ["a"], "minProperties": 1}, ['{"a": 1}'], ["{}"]),
    ({"properties": {"a": INTEGER}, "maxProperties": 1, "additionalProperties": False}, ['{"a": 1}'], []),
    ({"type": "array", "items": INTEGER}, ["[]", "[1, 2]"], ['["a"]']),
    ({"items": INTEGER, "minItems": 2, "maxItems": 3}, ["[1, 2]", "[1, 2, 3]"], ["[1]", "[1, 2, 3, 4]"]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, ["[null]", '["a", "b"]'], ["[]", "[1, 2, 3]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"type": "array", "prefixItems": [INTEGER, STRING]}, ["[]", "[1]", '[1, "a"]'], ["[1, 2]"]),
    ({"prefixItems": [INTEGER, STRING], "items": INTEGER, "minItems": 2}, ['[1, "a"]', '[1, "a", 2]'], ["[1]"]),
    ({"prefixItems": [INTEGER, STRING], "items": False, "minItems": 1}, ["[1]", '[1, "a"]'], ["[]", '[1, "a", 2]']),
    ({"prefixItems": [INTEGER, STRING], "maxItems": 1}, ["[]", "[1]"], ['[1, "a"]']),
    ({"type": "array", "uniqueItems": False}, ["[1, 1]"], []),
    ({"anyOf": [INTEGER, {"type": "null"}], "title": "x", "default": None}, ["1", "null"], ['"a"']),
    ({"oneOf": [INTEGER, STRING]}, ["1", '"a"'], ["null"]),
    ({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}, ["1", "2"], ["5"]),
    ({"allOf": [INTEGER]}, ["1"], ['"a"']),
    ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": INTEGER}}, ["1"], ['"a"']),
    ({"properties": {"a": {"$ref": "#"}}}, ["{}", '{"a": {"a": {}}}'], ['{"a": 1}']),
    ({"properties": {"a": INTEGER, "b": {"$ref": "#/properties/a"}}}, ['{"a": 1, "b": 2}'], ['{"a": 1, "b": "x"}']),
    ({"$ref": "#/anyOf/1", "anyOf": [INTEGER, STRING]}, [], []),
]  # fmt: skip


def name(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)[:60]


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED[:-1], ids=lambda value: name(value))
def test_what_the_masks_allow_is_valid(converter: Any, schema: Any, good: list[str], bad: list[str]) -> None:
    compiled = converter("json_schema", schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for text in good:
        assert compiled.accepts(text), text
    for text in bad:
        assert not compiled.accepts(text), text
    for text in (*map(json.dumps, VALUES), *(json.dumps(value, ensure_ascii=False) for value in VALUES), *TEXTS):
        if compiled.accepts(text):
            assert validator.is_valid(json.loads(text)), text
    for output in compiled.random_outputs(15):
        assert validator.is_valid(json.loads(output.decode())), output


@pytest.mark.parametrize("format", FORMATS)
def test_formats(converter: Any, format: str) -> None:
    checker = Draft202012Validator.FORMAT_CHECKER
    assert format in checker.checkers, "the checker would take anything"
    texts = list(converter("json_schema", {"type": "string", "format": format}).random_outputs(60))
    assert len(texts) > 30
    for text in texts:
        assert checker.conforms(json.loads(text.decode()), format), text


REFUSED: list[tuple[Any, str]] = [
    ({"type": "integer", "multipleOf": 5}, "'multipleOf' at #"),
    ({"properties": {"a": {"type": "array", "items": {"not": {}}}}}, "'not' at #/properties/a/items"),
    ({"patternProperties": {"a": {}}}, "'patternProperties'"),
    ({"type": "array", "contains": {}}, "'contains'"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems at #"),
    ({"if": {}, "then": {}}, "'if'"),
    ({"type": "string", "format": "regex"}, "format 'regex' at #"),
    ({"type": "string", "format": ["date"]}, "format"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "pattern together with minLength"),
    ({"type": "string", "pattern": "(?=a)"}, "pattern at #: .*lookarounds"),
    ({"type": "string", "pattern": 5}, "must be text"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
    ({"type": "string", "minLength": True}, "whole number"),
    ({"type": "integer", "minimum": 5, "maximum": 2}, "no number"),
    ({"type": "number", "minimum": "5"}, "must be a number"),
    ({"type": "number", "minimum": 1e-20}, "digits after the point"),
    ({"enum": []}, "#/enum"),
    ({"enum": [1], "minimum": 0}, "'minimum' next to #/enum"),
    ({"type": "string", "const": 1}, "no value of the type"),
    ({"const": "\ud800"}, "surrogate"),
    ({"anyOf": [{}], "type": "string"}, "'type' next to #/anyOf"),
    ({"anyOf": "x"}, "#/anyOf must be a list"),
    ({"oneOf": [INTEGER, {"type": "number"}]}, "more than one member"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "more than one member"),
    ({"allOf": [INTEGER, {"minimum": 1}]}, "more than one member"),
    ({"$ref": "#/$defs/x", "minimum": 1, "$defs": {"x": INTEGER}}, "'minimum' next to #/\\$ref"),
    ({"$ref": "#/$defs/x"}, "does not exist"),
    ({"$ref": "http://x/y"}, "same schema"),
    ({"$ref": 5}, "same schema"),
    ({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [{"$ref": "#/$defs/x"}, INTEGER]}}}, "refers to itself"),
    (
        {"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}}},
        "infinitely recursive",
    ),
    (
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1}}},
        "infinitely recursive",
    ),
    (False, "allows something"),
    ([1], "allows something"),
    ({"items": [INTEGER]}, "#/items must be a schema"),
    ({"type": "array", "prefixItems": INTEGER}, "must be a list"),
    ({"type": "array", "items": False, "minItems": 1}, "minItems"),
    ({"type": "any"}, "type 'any'"),
    ({"type": []}, "no type"),
    ({"type": {"a": 1}}, "is unknown"),
    ({"required": "a"}, "required"),
    ({"required": [1]}, "names"),
    ({"properties": ["a"]}, "properties"),
    ({"properties": {"a": INTEGER}, "additionalProperties": False, "required": ["b"]}, "allows something"),
    ({"minProperties": 1}, "minProperties"),
    ({"properties": {"a": {}}, "maxProperties": 0}, "maxProperties"),
    ({"properties": {"a" * 300: {}}, "additionalProperties": True}, "256"),
    ("{", "not valid JSON"),
    ('{"minimum": NaN}', "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ('{"items": ' * 200 + "{}" + "}" * 200, "too large"),
    ({"anyOf": [INTEGER] * 20_000}, "too large"),
]


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=lambda value: name(value))
def test_unenforceable_schemas_are_refused_with_the_path(converter: Any, schema: Any, words: str) -> None:
    assert re.search(words, converter.refusal("json_schema", schema))


def test_one_of_with_a_property_that_tells_the_members_apart(converter: Any) -> None:
    def animal(kind: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": kind, "a": INTEGER}, "required": ["kind"]}

    cat, dog = animal({"const": "cat"}), animal({"enum": ["dog", "wolf"]})
    schema = {"oneOf": [{"$ref": "#/$defs/cat"}, dog], "$defs": {"cat": cat}}
    compiled = converter("json_schema", schema)
    assert compiled.accepts('{"kind": "cat"}') and compiled.accepts('{"kind": "wolf", "a": 1}')
    assert converter.refusal("json_schema", {"oneOf": [cat, animal({"enum": ["cat"]})]})
    assert converter.refusal("json_schema", {"oneOf": [cat, {**dog, "required": []}]})


def test_every_keyword_that_is_claimed_is_tested() -> None:
    tested = {key for schema, *_ in ENFORCED if isinstance(schema, dict) for key in schema}
    claimed = set(STANDALONE) | {key for keys in BY_TYPE.values() for key in keys}
    assert claimed <= tested
    assert not claimed & ANNOTATIONS


def test_whitespace(converter: Any, converters: Any) -> None:
    schema = {"properties": {"a": {"type": "array", "items": INTEGER}}, "required": ["a"]}
    compact, wide = (
        converter("json_schema", schema),
        converters(any_whitespace=True, max_whitespace=3)("json_schema", schema),
    )
    assert compact.accepts('{"a": [1, 2]}') and wide.accepts('{"a": [1, 2]}')
    for text in ('{"a":[1,2]}', '{\n  "a" : [ 1 ,\t2 ]\n}', "{}", ' {"a": []}'):
        assert not compact.accepts(text)
        assert wide.accepts(text) == (text[0] == "{" and "a" in text)
    assert not wide.accepts('{    "a": []}')
    assert converters(any_whitespace=True)("json_object").accepts('{"a" : { } , "b":[ ]}')


SCALARS = st.one_of(
    st.just({"type": "boolean"}),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-2000, 2000), st.integers(0, 3000),
    ),
    st.builds(
        lambda low, more, kind: {"type": "number", "minimum": low / 8, kind: (low + more) / 8},
        st.integers(-99, 99), st.integers(1, 99), st.sampled_from(["maximum", "exclusiveMaximum"]),
    ),
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 4), st.integers(0, 4),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=3), st.none()), min_size=1, max_size=3),
    ),
    st.sampled_from([{"type": ["null", "integer"]}, {"type": "string", "pattern": "^[a-c]{1,3}$"}, {"type": "string"}]),
)  # fmt: skip


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "ab", "é", "x y", ""])
    objects = st.builds(
        lambda properties, some, more: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[:some],
            **({} if more is None else {"additionalProperties": more}),
        },
        st.dictionaries(names, inner, max_size=3),
        st.integers(0, 3),
        st.one_of(st.none(), st.booleans(), inner),
    )
    arrays = st.builds(
        lambda items, low, more: {"type": "array", "items": items, "minItems": low, "maxItems": low + more},
        inner, st.integers(0, 2), st.integers(0, 2),
    )  # fmt: skip
    return st.one_of(
        objects, arrays, st.builds(lambda members: {"anyOf": members}, st.lists(inner, min_size=1, max_size=3))
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.recursive(SCALARS, nested, max_leaves=6))
def test_random_outputs_are_valid_for_every_schema(converter: Any, schema: Any) -> None:
    if any("\ud800" <= dump <= "\udfff" for dump in json.dumps(schema, ensure_ascii=False)):
        return
    validator = Draft202012Validator(schema)
    for text in converter("json_schema", schema).random_outputs(4):
        assert validator.is_valid(json.loads(text.decode())), (schema, text)
