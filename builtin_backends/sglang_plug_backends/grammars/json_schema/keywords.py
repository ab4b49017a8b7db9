"""The keywords of JSON Schema: those that are enforced, and the assertions of any draft that cannot be.

Every other keyword is an annotation and is ignored, as sections 4.3.1 and 6.5 of the 2020-12 core specification say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .formats import DEFINED_FORMATS

ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id $anchor $vocabulary $defs "
    "definitions contentEncoding contentMediaType contentSchema".split()
)
"""Annotations that JSON Schema itself defines. They do not restrict the valid values."""

BY_TYPE: Mapping[str, Mapping[str, str]] = {
    "string": {
        "minLength": "from 2 on, the string has no character that JSON escapes",
        "maxLength": "the string has no character that JSON escapes",
        "pattern": "not together with lengths or a format; the string has no character that JSON escapes, unless the "
        "pattern names it",
        "format": "see below; not together with lengths or a pattern",
    },
    "number": {name: "" for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")},
    "object": {
        "properties": "written in the order of the schema",
        "required": "",
        "additionalProperties": "properties that the schema does not name are written only where this allows them, or "
        "where it names none at all",
        "minProperties": "as far as `required` ensures it",
        "maxProperties": "as far as `properties` without `additionalProperties` ensures it",
    },
    "array": {
        "items": "",
        "prefixItems": "",
        "minItems": "",
        "maxItems": "",
        "uniqueItems": "only `false`",
    },
}
BY_TYPE = {**BY_TYPE, "integer": BY_TYPE["number"], "boolean": {}, "null": {}}

STANDALONE: Mapping[str, str] = {
    "enum": "besides `type` only",
    "const": "besides `type` only",
    "anyOf": "without other keywords next to it",
    "oneOf": "without other keywords next to it; only if types, constants or a constant property keep members apart",
    "allOf": "only with one member, and without other keywords next to it",
    "$ref": "to another part of the same schema, without other keywords next to it",
}
"""Keywords that alone decide which values their schema allows."""

OTHER_ASSERTIONS = frozenset(
    "not if then else dependentSchemas dependentRequired dependencies unevaluatedProperties unevaluatedItems contains "
    "minContains maxContains patternProperties propertyNames multipleOf additionalItems".split()
    + ["$dynamicRef", "$recursiveRef"]
)
"""Keywords of the drafts 4 to 2020-12 that restrict the valid values and that ``schema`` cannot enforce."""

KNOWN = frozenset({"type", *STANDALONE, *(name for names in BY_TYPE.values() for name in names)})
"""Keywords that the conversion to EBNF enforces."""

ASSERTIONS = KNOWN | OTHER_ASSERTIONS
"""Every keyword that restricts the valid values."""

VOID_VALUES: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "additionalItems", "propertyNames"), (True, {})),
    **dict.fromkeys(("dependencies", "dependentSchemas", "dependentRequired", "patternProperties"), ({},)),
}
"""Values with which an assertion allows everything."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
}
"""Assertions that restrict nothing unless one of these keywords is present too."""


def restricts(key: str, schema: Mapping[str, Any]) -> bool:
    """Return whether ``key`` of ``schema`` restricts the valid values."""
    value = schema[key]
    if key not in ASSERTIONS or any(value == item and type(value) is type(item) for item in VOID_VALUES.get(key, ())):
        return False
    if key == "format":
        types = schema.get("type", "string")
        return not isinstance(value, str) or (value in DEFINED_FORMATS and "string" in _listed(types))
    return key not in NEEDS or any(other in schema for other in NEEDS[key])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
