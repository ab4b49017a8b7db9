"""Parsers read every enforced call, and its arguments satisfy the schema, for any model output."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from sglang_plug import OutputParser, Plugins

from .conftest import RANDOMLY_TESTED, VALUE_ENDS

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
ODD = ["", "a b", "it's", '"', "\\", "\n", "<|end|>", "</tool_call>", ")", "]", "a, b=1", "é", "漢", "\u2028", "True"]
PARAMETERS: dict[str, dict[str, Any]] = {
    "nothing": {"properties": {}, "additionalProperties": False},
    "anything": {},
    "constants": {
        "properties": {
            "text": {"enum": ODD},
            "number": {"enum": [1, -2.5, 1e30, 0]},
            "other": {"enum": [True, False, None, [], {}, [True, {"a b": None}], {"x": [False]}]},
        },
        "required": ["text", "number", "other"],
    },
    "scalars": {
        "properties": {
            "a": {"type": "string", "maxLength": 4},
            "from": {"type": "number", "minimum": -1, "maximum": 1},
            "b-c": {"type": ["boolean", "null"]},
            "d.é": {"type": "integer", "minimum": 0, "maximum": 20},
        },
        "required": ["a", "d.é"],
    },
    "escapes": {"properties": {"text": STRING}, "required": ["text"]},
    "formats": {
        "properties": {"day": {"type": "string", "format": "date"}, "code": {"type": "string", "pattern": '^["/]{2}$'}},
        "required": ["day", "code"],
    },
    "nested": {
        "properties": {
            "a": {"type": "array", "items": {"type": "array", "items": INTEGER, "maxItems": 2}, "maxItems": 2},
            "b": {"type": "object", "properties": {"x y": INTEGER}, "additionalProperties": {"type": "boolean"}},
            "c": {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [STRING, INTEGER], "items": False}]},
        },
        "required": ["a", "b", "c"],
    },
    "more": {"properties": {"a": INTEGER, "ab": INTEGER}, "additionalProperties": {"type": "boolean"}},
    "references": {
        "properties": {"tree": {"$ref": "#/$defs/tree"}, "self": {"$ref": "#"}},
        "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "leaf": INTEGER}}},
        "required": ["tree"],
    },
}
OUTPUTS = 24


@pytest.fixture(scope="module")
def parsers() -> dict[str, type[OutputParser]]:
    plugins = Plugins.discover()
    return {name: plugins.get("tool-parser", name).load(OutputParser) for name in plugins.names("tool-parser")}


@pytest.mark.parametrize("function", PARAMETERS)
@pytest.mark.parametrize("name", RANDOMLY_TESTED)
def test_random_calls_are_read_and_valid(
    parsers: dict[str, type[OutputParser]], read: Any, grammar_backends: Callable[..., Any], name: str, function: str
) -> None:
    schema = {"type": "object", **PARAMETERS[function]}
    functions = {function: schema, "other-1": schema}
    constraint = parsers[name].structure(functions, required=True, parallel=True)
    assert constraint is not None
    validator = Draft202012Validator(schema)
    result = 0
    wishes = VALUE_ENDS if "any_text" in constraint.source else []
    for text in grammar_backends("xgrammar")(constraint.kind, constraint.source).random_outputs(OUTPUTS, wishes, 700):
        calls = read(parsers[name], text.decode(), functions=functions)
        for index, (number, called, arguments) in enumerate(calls):
            assert (number, called in (function, "other-1")) == (index, True), text
            assert validator.is_valid(json.loads(arguments)), text
        result += bool(calls)
        assert calls, text
    assert result > OUTPUTS // 5


@pytest.mark.parametrize("name", ["gpt-oss", "pythonic"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems at #/properties/a"),
        ({"properties": {"a": {"not": {}}}}, "'not' at #/properties/a"),
        ({"patternProperties": {"a": {}}}, "'patternProperties' at #"),
    ],
)
def test_keywords_that_cannot_be_enforced_are_named(
    parsers: dict[str, type[OutputParser]],
    grammar_backends: Callable[..., Any],
    name: str,
    parameters: dict[str, Any],
    words: str,
) -> None:
    constraint = parsers[name].structure({"f": {"type": "object", **parameters}}, required=True, parallel=False)
    assert constraint is not None
    assert words in grammar_backends("xgrammar").refusal(constraint.kind, constraint.source)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"properties": {"x y": INTEGER}}, "#/properties/x y cannot be the name of an argument"),
        ({"properties": {"": INTEGER}}, "#/properties/ cannot be the name of an argument"),
        ({"required": ["x y"]}, "'x y' at #/required cannot be the name of an argument"),
        ({"anyOf": [{"required": ["a"]}]}, "'anyOf' at # cannot be enforced in the arguments of a call"),
        ({"type": ["object", "null"]}, "type at # must be 'object'"),
    ],
)
def test_values_without_python_notation_are_refused(
    parsers: dict[str, type[OutputParser]], grammar_backends: Callable[..., Any], parameters: Any, words: str
) -> None:
    schema = {"type": "object", **parameters}
    constraint = parsers["pythonic"].structure({"f": schema}, required=True, parallel=False)
    assert constraint is not None
    assert words in grammar_backends("xgrammar").refusal(constraint.kind, constraint.source)


@pytest.mark.parametrize("function", ["constants", "escapes", "formats", "nested", "references"])
def test_python_calls_mean_the_same_to_python(
    parsers: dict[str, type[OutputParser]], read: Any, grammar_backends: Callable[..., Any], function: str
) -> None:
    schema = {"type": "object", **PARAMETERS[function]}
    constraint = parsers["pythonic"].structure({"f": schema}, required=True, parallel=True)
    assert constraint is not None
    for text in grammar_backends("xgrammar")(constraint.kind, constraint.source).random_outputs(OUTPUTS):
        (calls,) = ast.parse(text.decode()).body
        assert isinstance(calls, ast.Expr) and isinstance(calls.value, ast.List)
        for call, (_, _, arguments) in zip(calls.value.elts, read(parsers["pythonic"], text.decode()), strict=True):
            assert isinstance(call, ast.Call) and not call.args
            meant = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
            assert meant == json.loads(arguments)


def test_escapes_of_json_that_python_lacks_are_not_written(
    parsers: dict[str, type[OutputParser]], grammar_backends: Callable[..., Any]
) -> None:
    schema = {"type": "object", **PARAMETERS["escapes"]}
    constraint = parsers["pythonic"].structure({"f": schema}, required=True, parallel=False)
    assert constraint is not None
    compiled = grammar_backends("xgrammar")(constraint.kind, constraint.source)
    assert compiled.accepts('[f(text="\\n\\"\\u00e9/")]') and not compiled.accepts('[f(text="\\/")]')


@pytest.mark.parametrize("text", [item for item in ODD if item])
@pytest.mark.parametrize("name", RANDOMLY_TESTED)
def test_any_text_may_stand_in_an_argument(
    parsers: dict[str, type[OutputParser]], read: Any, grammar_backends: Callable[..., Any], name: str, text: str
) -> None:
    schema = {"type": "object", "properties": {"text": {"const": text}}, "required": ["text"]}
    constraint = parsers[name].structure({"f": schema}, required=True, parallel=False)
    assert constraint is not None
    (written, *_) = grammar_backends("xgrammar")(constraint.kind, constraint.source).random_outputs(1)
    ((_, called, arguments),) = read(parsers[name], written.decode(), functions={"f": schema})
    assert (called, json.loads(arguments)) == ("f", {"text": text})
