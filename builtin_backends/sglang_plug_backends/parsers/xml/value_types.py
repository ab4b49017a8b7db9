"""Types of arguments that are written as plain text, taken from the schema of a function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_plug_backends.grammars.json_schema.keywords import restricts

MAX_PARTS = 500
"""Maximum number of references and alternatives that are followed."""
STRING = "string"
PRIMITIVE = frozenset({"null", "boolean", "integer", "number"})
ALL = frozenset({STRING, "object", "array", *PRIMITIVE})
INTEGERS = frozenset({"integer"})
NESTED = ("$ref", "anyOf", "oneOf", "allOf")
"""Keywords that refer to other schemas for the same value."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values that one argument may have."""

    types: frozenset[str] = ALL
    members: frozenset[str] | None = None
    """The only strings that are allowed, if the schema lists them."""
    limited: bool = False
    """The schema restricts values beyond their type."""

    @property
    def is_text(self) -> bool:
        """Return True if every text is a value and means itself."""
        return self.types == {STRING} and not self.limited

    @property
    def is_open(self) -> bool:
        """Return True if every text is a value: itself, or what it is in JSON."""
        return STRING in self.types and not self.limited and (self.types == ALL or self.types <= PRIMITIVE | {STRING})

    @property
    def is_string(self) -> bool:
        """Return True if all values are strings."""
        return self.types == {STRING}

    def allows(self, value: object) -> bool:
        """Return whether a value of JSON has one of the types."""
        kind = type_of(value)
        return kind in self.types or (kind == "integer" and "number" in self.types)


ANY = ValueType()


def type_of(value: object) -> str:
    """Return the type of a value of JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return STRING
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
    return "object"


def argument_type(root: Mapping[str, Any], key: str) -> ValueType:
    """Return the type of the argument ``key`` of a function whose arguments have the schema ``root``."""
    for schema in _alternatives(root, root, set()):
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return value_type(properties[key], root)
    return value_type(root.get("additionalProperties", True), root)


def value_type(schema: object, root: Mapping[str, Any]) -> ValueType:
    """Return the type of the values of ``schema``, whose references lead into ``root``."""
    types = set[str]()
    members = set[str]()
    unlisted, limited = False, False
    for part in _alternatives(schema, root, set()):
        own = _own(part)
        types |= own.types
        limited |= own.limited
        members |= own.members or frozenset()
        unlisted |= STRING in own.types and own.members is None
    if not types:
        return ANY
    return ValueType(frozenset(types), None if unlisted else frozenset(members), limited)


def _alternatives(schema: object, root: Mapping[str, Any], visited: set[int]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that decide about values: those behind references and within alternatives, each once."""
    if not isinstance(schema, Mapping):
        if schema is not False:
            yield {}
        return
    if id(schema) in visited or len(visited) > MAX_PARTS:
        return
    visited.add(id(schema))
    nested = [keyword for keyword in NESTED if keyword in schema]
    for keyword in nested:
        value = schema[keyword]
        members = [_target(root, value)] if keyword == "$ref" else value if isinstance(value, list) else []
        for member in members:
            yield from _alternatives(member, root, visited)
    if not nested:
        yield schema
    elif len(nested) > 1 or nested[0] not in ("$ref", "anyOf") or _restricts(schema, nested[0]):
        yield {"const": None, "type": []}  # no further values, and not all of the others
    if schema.get("nullable") is True:
        yield {"type": "null"}


def _own(schema: Mapping[str, Any]) -> ValueType:
    """Return what a schema without references and alternatives says."""
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared] if isinstance(declared, str) else sorted(ALL)
    types = frozenset(kind for kind in listed if isinstance(kind, str)) & ALL
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        kinds = frozenset(type_of(value) for value in values)
        strings = frozenset(value for value in values if isinstance(value, str) and STRING in types)
        return ValueType(kinds & (types | INTEGERS if "number" in types else types), strings, limited=True)
    return ValueType(types, None, _restricts(schema, "type"))


def _restricts(schema: Mapping[str, Any], *without: str) -> bool:
    return any(key not in without and restricts(key, schema) for key in schema)


def _target(root: Mapping[str, Any], pointer: str) -> object:
    value: object = root
    for name in pointer.removeprefix("#").split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, Mapping):
            value = value.get(name)
        else:
            return None
    return value


def json_of(text: str, kind: ValueType) -> str | None:
    """Return ``text`` if it is JSON of one of the types; ``None`` if it means itself.

    A text that no type allows is passed on if it is JSON, because the type may be the caller's mistake.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return text if kind.allows(value) or STRING not in kind.types else None
