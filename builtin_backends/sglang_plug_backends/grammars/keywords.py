"""What of JSON Schema (draft 2020-12) is enforced. Everything that is not named here is refused."""

from __future__ import annotations

from collections.abc import Mapping

ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id $defs definitions".split()
)
"""Say nothing about what is valid."""

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

ALONE: Mapping[str, str] = {
    "enum": "besides `type` only",
    "const": "besides `type` only",
    "anyOf": "without other keywords beside it",
    "oneOf": "without other keywords beside it; only if types, constants or a constant property keep members apart",
    "allOf": "only with one member, and without other keywords beside it",
    "$ref": "to places in the same schema, without other keywords beside it",
}
"""Keywords that decide everything where they stand."""

KNOWN = ANNOTATIONS | ALONE.keys() | {"type"} | {name for names in BY_TYPE.values() for name in names}
