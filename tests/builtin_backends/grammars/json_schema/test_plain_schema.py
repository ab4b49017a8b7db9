"""Annotations change no schema, and OpenAPI's ``nullable`` and ``discriminator`` work with any backend."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, TypeAdapter

from sglang_plug import Constraint
from sglang_plug_backends.grammars.json_schema.keywords import OTHER_ASSERTIONS
from tests.annotated_schemas import ANNOTATIONS, annotated
from tests.e2e.random_schemas import RandomSchema

INTEGER = {"type": "integer"}


def a_object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


CONTEXTS: list[tuple[Callable[[Any], Any], str]] = [  # a schema around another one, and where that stands
    (lambda item: item, "#"),
    (lambda item: a_object(a=item), "#/properties/a"),
    (lambda item: {"type": "array", "items": item, "maxItems": 1}, "#/items"),
    (lambda item: {"type": "array", "prefixItems": [item], "items": False, "minItems": 1}, "#/prefixItems/0"),
    (lambda item: {"anyOf": [{"type": "null"}, item]}, "#/anyOf/1"),
    (lambda item: {"allOf": [item]}, "#/allOf/0"),
    (lambda item: {"type": "object", "additionalProperties": item}, "#/additionalProperties"),
    (lambda item: {"$ref": "#/$defs/a", "$defs": {"a": item}}, "#/$defs/a"),
    (lambda item: {"$ref": "#/definitions/a", "definitions": {"a": item}}, "#/definitions/a"),
    (lambda item: {"$ref": "#/components/schemas/a", "components": {"schemas": {"a": item}}}, "#/components/schemas/a"),
    (lambda item: {"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": item}}, "#/$defs/a"),
    (lambda item: a_object(a={"const": 1, "nullable": True}, b=item), "#/properties/b"),
]


@pytest.mark.parametrize(("around", "path"), CONTEXTS, ids=lambda value: value if isinstance(value, str) else "")
def test_unknown_keywords_are_ignored_wherever_they_stand(
    backend: Any, around: Callable[[Any], Any], path: str
) -> None:
    names = [name for name in ANNOTATIONS if name != "nullable"]
    noise = {name: ANNOTATIONS[name] for name in names}
    bare, noisy = around(a_object(x=INTEGER)), around({**noise, **a_object(x={**INTEGER, **noise})})
    assert backend.refusal("json_schema", noisy) == ""
    constraints = [backend.backend.compile(_constraint(item)) for item in (bare, noisy)]
    assert constraints[0] == constraints[1]


def _constraint(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


@pytest.mark.parametrize(("around", "path"), CONTEXTS, ids=lambda value: value if isinstance(value, str) else "")
def test_assertions_that_cannot_be_enforced_are_refused_wherever_they_stand(
    backend: Any, around: Callable[[Any], Any], path: str
) -> None:
    reason = backend.refusal("json_schema", around({"type": "array", "contains": INTEGER}))
    assert reason == f"the keyword 'contains' at {path} cannot be enforced"


VALUES: dict[str, Any] = {
    **dict.fromkeys(("not", "contains", "propertyNames"), INTEGER),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "additionalItems"), False),
    **dict.fromkeys(("dependentSchemas", "dependencies"), {"a": {"required": ["b"]}}),
    "dependentRequired": {"a": ["b"]},
    "patternProperties": {"^a": INTEGER},
    "multipleOf": 3,
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
}
TOGETHER: dict[str, dict[str, Any]] = {
    "if": {"if": {}, "then": {}},
    "then": {"if": {}, "then": {}},
    "else": {"if": {}, "else": {}},
    "minContains": {"contains": INTEGER, "minContains": 2},
    "maxContains": {"contains": INTEGER, "maxContains": 2},
}
ENFORCED_BY = {"llguidance": {"patternProperties", "multipleOf"}}


@pytest.mark.parametrize("keyword", sorted(OTHER_ASSERTIONS))
def test_assertions_of_every_draft_are_refused(backend: Any, keyword: str) -> None:
    schema = TOGETHER.get(keyword) or {keyword: VALUES[keyword]}
    reason = backend.refusal("json_schema", a_object(a=schema))
    if keyword in ENFORCED_BY.get(backend.name, ()):
        assert reason == ""
    else:
        assert "cannot be enforced" in reason and "#/properties/a" in reason
        assert any(repr(item) in reason for item in schema)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 2, "exclusiveMinimum": True}, "exclusiveMinimum at #"),
        ({"type": "array", "items": [INTEGER]}, "#/items must be a schema; a list of schemas is called prefixItems"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "regex"}, "the format 'regex' at #"),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here"}}}, "$ref at #/$ref must point into the same schema"),
        (
            {"properties": {"a": {"$ref": "other.json#/a"}}},
            "$ref at #/properties/a/$ref must point into the same schema",
        ),
        ({"$ref": "#/x-parts/a", "x-parts": {"a": {"items": {"not": {}}}}}, "'not' at #/x-parts/a/items"),
    ],
)
def test_errors_of_malformed_or_unenforceable_tags_name_the_path(backend: Any, schema: Any, words: str) -> None:
    assert words in backend.refusal("json_schema", schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"then": {"not": {}}, "else": False},
        {"if": {"const": 1}},
        {"minContains": 2, "maxContains": 3},
        {"uniqueItems": False, "unevaluatedProperties": True, "unevaluatedItems": {}, "propertyNames": {}},
        {"dependencies": {}, "dependentRequired": {}, "dependentSchemas": {}, "patternProperties": {}},
        {"$recursiveAnchor": True, "$dynamicAnchor": "node", "$vocabulary": {"http://example.org": True}},
        {"format": "int32"},
    ],
)
def test_assertions_that_say_nothing_are_ignored(backend: Any, schema: Any) -> None:
    assert backend("json_schema", {**schema, **INTEGER}).accepts("5")


def test_formats_that_json_schema_does_not_define_are_annotations(backend: Any) -> None:
    assert backend("json_schema", {"type": "string", "format": "phone"}).accepts('"anything"')


def test_references_within_a_part_with_an_id_of_its_own_begin_there(backend: Any) -> None:
    part = {"$id": "http://example.org/part", "$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}
    schema = {**a_object(p=part, q={"$ref": "#/$defs/a"}), "$defs": {"a": INTEGER}}
    compiled = backend("json_schema", schema)
    assert compiled.accepts('{"p": null, "q": 1}')
    assert not compiled.accepts('{"p": 1, "q": 1}') and not compiled.accepts('{"p": null, "q": null}')


def test_references_of_generators_that_ignore_ids_begin_at_the_document(backend: Any) -> None:
    schema = {**a_object(p={"$id": "part", "$ref": "#/$defs/a"}), "$defs": {"a": INTEGER}}
    assert backend("json_schema", schema).accepts('{"p": 1}')


# -- nullable ---------------------------------------------------------------------------------------------------------

NULLABLE: list[tuple[dict[str, Any], str, str]] = [  # schema, what it allows besides null, what it does not
    (INTEGER, "1", '"a"'),
    ({"type": ["integer", "boolean"]}, "true", '"a"'),
    ({"type": "string", "enum": ["a", "b"]}, '"a"', '"c"'),
    ({"enum": ["a", 1]}, '"a"', '"c"'),
    ({"const": "a"}, '"a"', '"b"'),
    ({"$ref": "#/$defs/a"}, "1", '"a"'),
    ({"allOf": [{"$ref": "#/$defs/a"}]}, "1", '"a"'),
    ({"anyOf": [INTEGER, {"type": "boolean"}]}, "true", '"a"'),
    ({"oneOf": [INTEGER, {"type": "boolean"}]}, "true", '"a"'),
    ({"type": "string", "maxLength": 2}, '"ab"', '"abc"'),
    (a_object(x=INTEGER), '{"x": 1}', "1"),
    ({"type": "array", "items": INTEGER}, "[1]", '["a"]'),
]


@pytest.mark.parametrize(("schema", "good", "bad"), NULLABLE, ids=str)
@pytest.mark.parametrize("within", [True, False])
def test_nullable_allows_null_besides(backend: Any, schema: dict[str, Any], good: str, bad: str, within: bool) -> None:
    definitions = {"$defs": {"a": INTEGER}}
    for nullable in (True, False, "true"):
        variant = {**schema, "nullable": nullable}
        compiled = backend("json_schema", {**(a_object(v=variant) if within else variant), **definitions})
        for text, expected in ((good, True), (bad, False), ("null", nullable is True)):
            assert compiled.accepts(f'{{"v": {text}}}' if within else text) is expected, (nullable, text)


def test_nullable_alone_restricts_nothing(converter: Any) -> None:
    assert all(converter("json_schema", {"nullable": True}).accepts(text) for text in ("1", "null", '"a"'))


# -- discriminator ----------------------------------------------------------------------------------------------------


class BlackCat(BaseModel):
    kind: Literal["cat"] = "cat"
    color: Literal["black"]
    lives: int


class WhiteCat(BaseModel):
    kind: Literal["cat"] = "cat"
    color: Literal["white"]
    name: Literal["Mia", "Leo"]


class Dog(BaseModel):
    kind: Literal["dog", "puppy"] = "dog"
    barks: bool


class Robot(BaseModel):
    kind: Literal[7]


Cat = Annotated[BlackCat | WhiteCat, Field(discriminator="color")]


class Home(BaseModel):
    pet: Annotated[Cat | Dog | Robot, Field(discriminator="kind")]
    other: Annotated[BlackCat | Dog, Field(discriminator="kind")] | None = None


class Number(BaseModel):
    kind: Literal["number"] = "number"
    value: int


class Sum(BaseModel):
    kind: Literal["sum"] = "sum"
    left: Expression
    right: Expression


Expression = Annotated[Number | Sum, Field(discriminator="kind")]
Sum.model_rebuild()


def test_tagged_unions_of_pydantic_with_defaults_and_unions_within(backend: Any) -> None:
    compiled = backend("json_schema", Home.model_json_schema())
    for text in (
        '{"pet": {"kind": "cat", "color": "black", "lives": 9}}',
        '{"pet": {"kind": "cat", "color": "white", "name": "Mia"}, "other": null}',
        '{"pet": {"kind": "puppy", "barks": true}, "other": {"kind": "dog", "barks": false}}',
        '{"pet": {"kind": 7}, "other": {"kind": "cat", "color": "black", "lives": 1}}',
    ):
        Home.model_validate_json(text)
        assert compiled.accepts(text), text
    for text in (
        '{"pet": {"color": "black", "lives": 9}}',  # the tag has a default, but a tagged union needs it
        '{"pet": {"kind": "dog", "color": "black", "lives": 9}}',
        '{"pet": {"kind": "cat", "color": "white", "lives": 9}}',
        '{"pet": {"kind": 8}}',
        '{"pet": null}',
    ):
        assert not compiled.accepts(text), text


def test_recursive_tagged_unions(grammar_backends: Callable[..., Any]) -> None:
    schema = TypeAdapter(Expression).json_schema()
    number, two = '{"kind": "number", "value": 1}', '{"kind": "sum", "left": %s, "right": %s}'
    for name in ("xgrammar", "llguidance"):
        compiled = grammar_backends(name)("json_schema", schema)
        for text in (number, two % (number, number), two % (two % (number, number), number)):
            TypeAdapter(Expression).validate_json(text)
            assert compiled.accepts(text)
        assert not compiled.accepts('{"value": 1}') and not compiled.accepts(two % (number, '{"value": 1}'))
    assert "refers to itself" in grammar_backends("outlines").refusal("json_schema", schema)


def shape(kind: Any, **properties: Any) -> dict[str, Any]:
    return {**a_object(kind=kind, **properties), "required": list(properties)}


def union(discriminator: Any, key: str = "oneOf", **schemas: Any) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    return {"discriminator": discriminator, key: references, "components": {"schemas": schemas}}


TEXT, FLAG = {"type": "string"}, {"type": "boolean"}
BY_KIND = {"propertyName": "kind"}
REFERENCE = "#/components/schemas/B"
UNIONS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "named by their schemas": (
        union(BY_KIND, A=shape(TEXT, x=INTEGER), B=shape(TEXT, y=FLAG)),
        ['{"kind": "A", "x": 1}', '{"kind": "B", "y": true}'],
        ['{"kind": "B", "x": 1}', '{"x": 1}', '{"kind": "C", "x": 1}'],
    ),
    "named by a mapping": (
        union({**BY_KIND, "mapping": {"a": "A", "aa": "A", "b": REFERENCE}}, A=shape(TEXT, x=INTEGER), B=shape(TEXT)),
        ['{"kind": "a", "x": 1}', '{"kind": "aa", "x": 1}', '{"kind": "b"}'],
        ['{"kind": "A", "x": 1}', '{"kind": "a"}', "{}"],
    ),
    "next to a type": (
        {**union(BY_KIND, A=shape({"const": "a"}), B=shape({"enum": ["b", "c"]})), "type": "object"},
        ['{"kind": "a"}', '{"kind": "c"}'],
        ["{}", '{"kind": "d"}'],
    ),
    "of anyOf": (
        union(BY_KIND, "anyOf", A=shape({"const": "a"}, x=INTEGER), B=shape({"const": "b"}, x=FLAG)),
        ['{"kind": "a", "x": 1}', '{"kind": "b", "x": true}'],
        ['{"x": 1}', '{"kind": "b", "x": 1}'],
    ),
    "narrowed by the mapping": (
        union({**BY_KIND, "mapping": {"a": "A", "b": "B"}}, A=shape({"enum": ["a", "b"]}), B=shape({"enum": ["b"]})),
        ['{"kind": "a"}', '{"kind": "b"}'],
        ["{}"],
    ),
    "with a constant elsewhere": (
        union(BY_KIND, A=shape({"$ref": "#/x-kinds/a"}), B=shape({"const": "b", "nullable": True}))
        | {"x-kinds": {"a": {"const": "a"}}},
        ['{"kind": "a"}', '{"kind": "b"}'],
        ['{"kind": null}', "{}"],
    ),
    "a branch that may be null": (
        union(BY_KIND, A={**shape({"const": "a"}), "nullable": True}, B=shape({"const": "b"})),
        ['{"kind": "a"}', '{"kind": "b"}'],
        ["null", "{}"],
    ),
    "a union that may be null": (
        {**union(BY_KIND, A=shape({"const": "a"}), B=shape({"const": "b"})), "nullable": True},
        ['{"kind": "a"}', "null"],
        ["{}"],
    ),
}


@pytest.mark.parametrize("name", UNIONS)
def test_a_discriminator_selects_the_branch(backend: Any, name: str) -> None:
    schema, good, bad = UNIONS[name]
    compiled = backend("json_schema", schema)
    assert [text for text in good if not compiled.accepts(text)] == []
    assert [text for text in bad if compiled.accepts(text)] == []


def test_inherited_branches_are_selected_where_allof_is_enforced(grammar_backends: Callable[..., Any]) -> None:
    base = {**a_object(kind=TEXT), "additionalProperties": True}
    branches = {
        name: {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {name: INTEGER}}]} for name in "AB"
    }
    schema = union({**BY_KIND, "mapping": {"a": "A", "b": "B"}}, "anyOf", **branches)
    schema["components"]["schemas"]["Base"] = base
    compiled = grammar_backends("llguidance")("json_schema", schema)
    assert compiled.accepts('{"kind": "a", "A": 1}') and not compiled.accepts('{"kind": "c", "A": 1}')
    assert "'properties' next to #/components/schemas/A/allOf" in grammar_backends("xgrammar").refusal(
        "json_schema", schema
    )


@pytest.mark.parametrize(
    "schema",
    [
        union({"propertyName": "other"}, A=shape(TEXT), B=shape(TEXT)),
        union(BY_KIND, A=shape({"const": "a"}), B=shape({"const": "a"})),
        union(BY_KIND, A=a_object(), B=a_object()),
        union({"propertyName": 5}, A=shape(TEXT), B=shape(TEXT)),
        union("kind", A=shape(TEXT), B=shape(TEXT)),
        {"discriminator": BY_KIND, "oneOf": [shape(TEXT), shape(TEXT)]},
        {"discriminator": BY_KIND, "oneOf": [TEXT, True]},
    ],
)
def test_branches_that_a_discriminator_does_not_tell_apart_are_refused(backend: Any, schema: Any) -> None:
    assert "oneOf" in backend.refusal("json_schema", schema)


def test_refusals_in_a_branch_name_the_original_path(backend: Any) -> None:
    schema = union(BY_KIND, A=shape({"const": "a"}, x={"items": {"not": {}}}), B=shape({"const": "b"}))
    reason = backend.refusal("json_schema", schema)
    assert reason == "the keyword 'not' at #/components/schemas/A/properties/x/items cannot be enforced"


def test_refusals_in_an_inline_branch_name_the_original_path(backend: Any) -> None:
    branches = [a_object(kind={"const": "a"}), a_object(kind={"const": "b"}, x={"not": {}})]
    reason = backend.refusal("json_schema", {"discriminator": BY_KIND, "oneOf": branches})
    assert reason == "the keyword 'not' at #/oneOf/1/properties/x cannot be enforced"


@pytest.mark.timeout(60)
def test_unions_that_lead_back_to_themselves_come_to_an_end(backend: Any) -> None:
    many = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}] * 200
    schema = {
        "discriminator": BY_KIND,
        "anyOf": many,
        "$defs": {"a": {"oneOf": many}, "b": {"anyOf": many}},
    }
    assert backend.refusal("json_schema", schema) != ""


# -- whatever the schema ----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_annotations_do_not_change_generated_schemas(grammar_backends: Callable[..., Any], seed: int) -> None:
    schema = RandomSchema(seed).schema()
    noisy = annotated(schema, random.Random(seed))
    for name in ("xgrammar", "llguidance"):
        backend = grammar_backends(name)
        plain, refusal = (backend.refusal("json_schema", item) for item in (schema, noisy))
        assert plain == refusal
        if not plain:
            assert backend.backend.compile(_constraint(schema)) == backend.backend.compile(_constraint(noisy))


TAGS = st.lists(st.sampled_from(["a", "b", "ab", "A1", "é"]), min_size=1, max_size=4, unique=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TAGS, st.lists(st.sampled_from(["const", "enum", "text"]), min_size=4, max_size=4), st.booleans(), st.data())
def test_outputs_follow_generated_tagged_unions(
    grammar_backends: Callable[..., Any], tags: list[str], forms: list[str], key: bool, data: st.DataObject
) -> None:
    """Every output is valid, has the tag, and is of the branch that the tag names."""
    kinds = {"const": lambda tag: {"const": tag}, "enum": lambda tag: {"enum": [tag]}, "text": lambda tag: TEXT}
    schemas = {f"S{at}": shape(kinds[forms[at]](tag), **{f"x{at}": FLAG}) for at, tag in enumerate(tags)}
    mapping = {tag: f"#/components/schemas/S{at}" for at, tag in enumerate(tags)}
    schema = union({"propertyName": "kind", "mapping": mapping}, "oneOf" if key else "anyOf", **schemas)
    backend = grammar_backends(data.draw(st.sampled_from(["xgrammar", "llguidance", "outlines"])))
    compiled = backend("json_schema", schema)
    for text in compiled.random_outputs(6):
        value = json.loads(text)
        Draft202012Validator(schema).validate(value)
        assert value.keys() == {"kind", f"x{tags.index(value['kind'])}"}
