"""JSON schemas that a grammar backend is tried on, each with values that it allows and values that it does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Raw:
    """A text that no ``json.dumps`` writes."""

    text: str


def _object(required: list[str] | None = None, more: Any = False, /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": more,
    }


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
TREE = _object(["value"], value=INTEGER, next={"$ref": "#/$defs/tree"})
SCHEMAS: Mapping[str, tuple[Any, list[Any], list[Any]]] = {
    "null": ({"type": "null"}, [None], [0, "", Raw("nul"), Raw("nulll")]),
    "boolean": ({"type": "boolean"}, [True, False], [0, "true", None, Raw("True")]),
    "integer": (INTEGER, [0, -1, 120, 98765], [1.5, "1", None, Raw("01"), Raw("-"), Raw("+1"), Raw("1 2")]),
    "number": ({"type": "number"}, [0, -1.5, 120, 0.25], ["1", None, Raw("1."), Raw(".5"), Raw("1e"), Raw("0x1")]),
    "string": (
        STRING,
        ["", "abc", 'a"b', "a\\b", "a\nb", "é", "漢字", "🙂", "{}[]:,"],
        [1, None, Raw('"a'), Raw('"a"b"'), Raw('"a\nb"'), Raw('"\\x"'), Raw('"\\u12"'), Raw("'a'")],
    ),
    "a long string": (
        {"type": "string", "minLength": 20, "maxLength": 150},
        ["a" * 20, "é漢" * 75, "b" * 131],
        ["", "a" * 19, "漢" * 151, Raw('"' + "a" * 40)],
    ),
    "several types": ({"type": ["integer", "null"]}, [3, None], ["3", 1.5, True]),
    "anything": (True, [1, "a", [], {"a": [None]}], [Raw("a"), Raw("[1"), Raw("{1: 2}")]),
    "properties": (
        _object(a=INTEGER, b=STRING),
        [{"a": 1, "b": "x"}],
        [{"a": "1", "b": "x"}, {"a": 1}, {"b": "x"}, {"a": 1, "b": "x", "c": 1}, {}, [], Raw('{"a": 1, "b": "x"')],
    ),
    "optional properties": (
        _object(["b"], a=INTEGER, b=STRING, c={"type": "null"}),
        [{"b": ""}, {"a": 1, "b": ""}, {"b": "", "c": None}, {"a": 1, "b": "", "c": None}],
        [{}, {"a": 1}, {"c": None}, {"a": 1, "c": None}, {"a": None, "b": ""}, Raw('{, "b": ""}'), Raw('{"b": "",}')],
    ),
    "only optional properties": (
        _object([], a=INTEGER, b=INTEGER),
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 2}],
        [{"c": 1}, {"a": "x"}, {"a": 1, "c": 1}],
    ),
    "no properties": (_object([]), [{}], [{"a": 1}, []]),
    "additional properties": (
        _object(["a"], INTEGER, a=STRING),
        [{"a": "x"}, {"a": "x", "b": 1}, {"a": "x", "ab": 1, "c": 2}],
        [{"a": 1}, {"a": "x", "b": "y"}, {"b": 1}, {"a": "x", "": None}],
    ),
    "an object of integers": (
        {"type": "object", "additionalProperties": INTEGER},
        [{}, {"a": 1}, {"a": 1, "b": 2}],
        [{"a": "x"}, {"a": 1, "b": None}, [1]],
    ),
    "a required property without a schema": (
        {"type": "object", "required": ["a"], "properties": {"b": INTEGER}},
        [{"a": 1, "b": 1}],
        [{"b": 1}, {}, {"a": 1, "b": "x"}],
    ),
    "names with quotes and escapes": (
        _object(**{'a"b': INTEGER, "é\n": INTEGER}),
        [{'a"b': 1, "é\n": 2}],
        [{"ab": 1}, {'a"b': 1}],
    ),
    "array": (
        {"type": "array", "items": INTEGER},
        [[], [1], [1, 2, 3]],
        [["a"], [1, None], {}, Raw("[1,]"), Raw("[,1]")],
    ),
    "bounded array": (
        {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 3},
        [[1, 2], [1, 2, 3]],
        [[], [1], [1, 2, 3, 4], [1, "2"]],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [INTEGER, STRING], "items": False, "minItems": 2},
        [[1, "a"]],
        [[1], ["a", 1], [1, "a", 2], []],
    ),
    "unique items": (
        {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True},
        [[1], [1, 2]],
        [[1, 1], [1, 2, 1]],
    ),
    "contains": ({"type": "array", "items": INTEGER, "contains": {"const": 7}}, [[7], [1, 7]], [[], [1, 2]]),
    "enum": (
        {"enum": ["a", 1, None, "é", [1], {"b": True}]},
        ["a", 1, None, "é", [1], {"b": True}],
        ["b", 2, True, [2], {"b": False}, "1"],
    ),
    "enum with a type": (
        {"type": "string", "enum": ["red", "green"]},
        ["red", "green"],
        ["blue", "redgreen", "r", None],
    ),
    "const": ({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, {"a": [1, "y"]}, {}]),
    "anyOf": ({"anyOf": [INTEGER, _object(a=STRING)]}, [1, {"a": "x"}], ["x", {"a": 1}, None]),
    "anyOf next to properties": (
        {**_object([], a=INTEGER, b=INTEGER), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"a": 1, "b": 1}],
        [{}, {"a": "x"}],
    ),
    "oneOf, apart": ({"oneOf": [INTEGER, STRING]}, [1, "a"], [None, [1]]),
    "oneOf, overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}, [1, 5.5], [7, 1.5]),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, [3, 5], [2, 6, "4"]),
    "not": ({"type": "string", "not": {"const": "a"}}, ["b"], ["a", 1]),
    "if, then, else": (
        {
            **_object(["a"], a={"enum": [1, 2]}, b=INTEGER),
            "if": {"properties": {"a": {"const": 1}}},
            "then": {"required": ["b"]},
        },
        [{"a": 1, "b": 1}, {"a": 2}],
        [{"a": 1}, {"a": 3, "b": 1}],
    ),
    "nested": (
        _object(a=_object(b={"type": "array", "items": _object(c={"enum": [1, 2]})})),
        [{"a": {"b": []}}, {"a": {"b": [{"c": 1}, {"c": 2}]}}],
        [{"a": {"b": [{"c": 3}]}}, {"a": {"b": [{}]}}, {"a": {}}, {"a": []}],
    ),
    "$ref": (
        {**_object(a={"$ref": "#/$defs/name"}, b={"$ref": "#/$defs/name"}), "$defs": {"name": {"enum": ["x", "y"]}}},
        [{"a": "x", "b": "y"}],
        [{"a": "x", "b": "z"}, {"a": 1, "b": "x"}],
    ),
    "$ref to itself": (
        {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
        [{"value": 1}, {"value": 1, "next": {"value": 2}}, {"value": 1, "next": {"value": 2, "next": {"value": 3}}}],
        [
            {},
            {"value": 1, "next": {}},
            {"value": 1, "next": {"value": "x"}},
            {"value": 1, "next": {"value": 2, "next": 3}},
        ],
    ),
    "minimum and maximum": ({"type": "integer", "minimum": -3, "maximum": 12}, [-3, 0, 9, 12], [-4, 13, 100, 1.5]),
    "exclusive bounds": (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        [0.5, 0.01],
        [0, 1, -1, 2, 1.5],
    ),
    "multipleOf": ({"type": "integer", "multipleOf": 5}, [0, 5, 15], [1, 7, 12]),
    "string lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc", "éé"], ["", "a", "abcd"]),
    "pattern": ({"type": "string", "pattern": "^[a-c]+[0-9]$"}, ["a1", "abc2"], ["", "1", "a", "d1", "a1b", "xa1"]),
    "pattern without anchors": ({"type": "string", "pattern": "b+"}, ["b", "abc"], ["", "ac"]),
    "pattern and length": ({"type": "string", "pattern": "^[a-c]*$", "maxLength": 2}, ["ab"], ["abc", "ad", "d"]),
    "pattern with an escape": ({"type": "string", "pattern": '^a"b\\\\$'}, ['a"b\\'], ["ab", 'a"b', 'a"b"']),
    "format date": (
        {"type": "string", "format": "date"},
        ["2024-01-31"],
        ["2024-13-01", "24-01-01", "2024-04-31", "x"],
    ),
    "format uuid": ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567", "x"]),
    "format ipv4": ({"type": "string", "format": "ipv4"}, ["127.0.0.1"], ["127.0.0", "256.0.0.1", "a"]),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": False},
        [{"x": 1}, {"xa": 1, "xb": 2}],
        [{"x": "a"}, {"y": 1}],
    ),
    "propertyNames": (
        {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": INTEGER},
        [{"ab": 1}],
        [{"abc": 1}],
    ),
    "number of properties": (
        {"type": "object", "additionalProperties": INTEGER, "minProperties": 1, "maxProperties": 2},
        [{"a": 1}, {"a": 1, "b": 2}],
        [{}, {"a": 1, "b": 2, "c": 3}],
    ),
    "two properties at least": (
        {"type": "object", "additionalProperties": INTEGER, "minProperties": 2},
        [{"a": 1, "b": 2}],
        [{}, {"a": 1}, Raw('{"a": 1, "a": 2}'), Raw('{"a":1,"a":2}')],
    ),
    "dependentRequired": (
        {**_object([], a=INTEGER, b=INTEGER), "dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 2}, {}],
        [{"a": 1}],
    ),
    "annotations": (
        {
            **_object(a={"type": "integer", "example": {"not": {}}, "x-order": 1}),
            "strict": True,
            "ui:widget": {"type": "null", "contains": {}},
            "minlength": "a",
        },
        [{"a": 1}],
        [{"a": "x"}, {}],
    ),
    "annotations in definitions": (
        {"$ref": "#/$defs/a", "markdownDescription": "**a**", "$defs": {"a": {"enum": ["x"], "enumNames": ["X"]}}},
        ["x"],
        ["X", None],
    ),
    "nullable": (
        _object(a={"type": "integer", "nullable": True}, b={"$ref": "#/$defs/b", "nullable": True})
        | {"$defs": {"b": {"enum": ["x"]}}},
        [{"a": 1, "b": "x"}, {"a": None, "b": None}],
        [{"a": "x", "b": "x"}, {"a": 1, "b": "y"}, None],
    ),
    "discriminator": (
        {
            "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/cat", "dog": "#/$defs/dog"}},
            "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "$defs": {
                "cat": _object([], kind={"const": "cat", "default": "cat"}, lives=INTEGER),
                "dog": _object(["barks"], kind={"const": "dog"}, barks={"type": "boolean"}),
            },
        },
        [{"kind": "cat", "lives": 9}, {"kind": "dog", "barks": True}],
        [{"kind": "cat", "barks": True}, {"kind": "dog", "lives": 9}, {"kind": "cow"}],
    ),
}
