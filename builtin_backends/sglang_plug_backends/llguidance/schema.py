"""Checks of JSON schemas before llguidance reads them: the enforced keywords and their positions.

llguidance refuses keywords that it knows and does not support; others it ignores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sglang_plug_backends.grammars.json_schema.formats import FORMATS
from sglang_plug_backends.grammars.json_schema.plain_schema import (
    DEFINITIONS,
    LISTS,
    NAMED,
    SINGLE,
    PlainSchema,
    plain_schema,
    subschemas,
)
from sglang_plug_backends.grammars.json_schema.references import unending
from sglang_plug_backends.grammars.refusal import Refusal

TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
SCALAR = frozenset(
    "type enum const required minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern "
    "format minItems maxItems minProperties maxProperties $ref".split()
)
"""Keywords that hold no schema."""
OWN_FORMATS = frozenset({"date", "time", "date-time"})
KNOWN_FORMATS = OWN_FORMATS | frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
KEYWORDS = SCALAR | SINGLE | LISTS | NAMED
"""Keywords that are enforced."""


def read_schema(source: str) -> dict[str, Any]:
    """Read the schema in ``source``. Raises ``Refusal`` if it is invalid or has keywords that are not enforced."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        root = json.loads(source, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the schema is not valid JSON: {error or 'it is nested too deeply'}") from None
    plain = plain_schema(root)
    references = set[str]()
    for path, schema in _schemas(plain):
        _check(path, schema)
        if isinstance(schema, dict):
            references |= {schema["$ref"]} if "$ref" in schema else set()
            _write_times(schema)
            _simplify(schema)
    if endless := unending(plain.schema, references):
        origin = plain.origin(min(endless))
        raise Refusal(f"$ref to {origin[:80]}: infinitely recursive")
    if plain.schema is False:
        raise Refusal("no value satisfies the schema false")
    return {} if plain.schema is True else dict(plain.schema)


def _write_times(schema: dict[str, Any]) -> None:
    """Replace dates and times: llguidance would write a year 0 and a second 60."""
    if schema.get("format") in OWN_FORMATS:
        schema["pattern"] = f"^(?:{FORMATS[schema.pop('format')]})$"


def _simplify(schema: dict[str, Any]) -> None:
    """Write limits without a decimal point, as llguidance reads them."""
    for key in COUNTS:
        if isinstance(value := schema.get(key), float):
            schema[key] = int(value)


def _schemas(plain: PlainSchema) -> Iterator[tuple[str, Any]]:
    """Yield all schemas with their paths in the original; the caller stops at values that are no schemas."""
    open_: list[tuple[str, Any]] = [("#", plain.schema)]
    definitions = plain.schema.get("$defs", {}) if isinstance(plain.schema, dict) else {}
    open_ += [(plain.origin(f"{DEFINITIONS}{name}"), definition) for name, definition in definitions.items()]
    open_.reverse()
    while open_:
        path, schema = open_.pop()
        yield path, schema
        if isinstance(schema, dict):
            open_ += reversed([(f"{path}/{step}", item) for step, _, _, item in subschemas(schema)])


def _check(path: str, schema: Any) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Refusal(f"{path} must be a schema, got {str(schema)[:40]}")
    for key, value in schema.items():
        if key in COUNTS and isinstance(value, float) and value.is_integer():
            continue
        if key not in KEYWORDS and key != "$defs":
            raise Refusal(f"the keyword {key[:80]!r} at {path} cannot be enforced")
        if key in LIMITS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Refusal(f"{key} at {path} must be a number, which is the limit itself")
        if key in SHAPES and (isinstance(value, bool) or not isinstance(value, SHAPES[key])):
            raise Refusal(f"{key} at {path} is malformed")
    types = schema.get("type", [])
    for item in types if isinstance(types, list) else [types]:
        if not isinstance(item, str) or item not in TYPES:
            raise Refusal(f"the type {str(item)[:40]!r} at {path} is unknown; known: {', '.join(sorted(TYPES))}")
    known = schema.get("format", "uuid")
    if known not in KNOWN_FORMATS or (known in OWN_FORMATS and "pattern" in schema):
        raise Refusal(f"the format {known[:40]!r} at {path} cannot be enforced")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise Refusal(f"required at {path} must hold names")
    if schema.get("minProperties", 0) > max(1, len(set(schema.get("required", ())))):
        raise Refusal(f"minProperties at {path} cannot be enforced beyond 1 and required: a name may come twice")


COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SHAPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(NAMED, dict),
    **dict.fromkeys(LISTS, list),
    **dict.fromkeys(COUNTS, int),
    "required": list,
    "enum": list,
    "type": (str, list),
    "pattern": str,
    "format": str,
    "$ref": str,
}
"""Required types of keyword values."""
