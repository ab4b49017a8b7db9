"""JSON schemas before llguidance reads them: which keywords it enforces, and where each may stand.

llguidance refuses keywords that it knows and does not support; those that nobody has told it about, it passes over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from sglang_plug_backends.grammars.formats import FORMATS
from sglang_plug_backends.grammars.references import resolve, unending
from sglang_plug_backends.grammars.refusal import Refusal

MOST_DEPTH = 64
MOST_NODES = 10_000
TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
ANNOTATIONS = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id $defs definitions".split()
)
"""Say nothing about what is valid."""
PLAIN = frozenset(
    "type enum const required minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern "
    "format minItems maxItems minProperties maxProperties $ref".split()
)
"""Keywords that hold no schema."""
ONE = frozenset({"items", "additionalProperties"})
"""Keywords that hold a schema."""
LISTS = frozenset({"prefixItems", "anyOf", "oneOf", "allOf"})
"""Keywords that hold a list of schemas."""
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords that hold schemas by name."""
BASES = frozenset({"$schema", "$id"})
"""Would change what $ref and items mean."""
OWN_FORMATS = frozenset({"date", "time", "date-time"})
KNOWN_FORMATS = OWN_FORMATS | frozenset({"duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
KEYWORDS = PLAIN | ONE | LISTS | NAMED - ANNOTATIONS
"""What is enforced."""


def read_schema(source: str) -> dict[str, Any]:
    """The schema in ``source``. Raises ``Refusal`` if it is none, or holds what llguidance does not enforce."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        schema = json.loads(source, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the schema is not valid JSON: {error or 'it is nested too deeply'}") from None
    references, seen = set[str](), set[int]()
    for index, (path, one, depth) in enumerate(_schemas("#", schema, 0)):
        if depth > MOST_DEPTH or index > MOST_NODES:
            raise Refusal(f"the schema is too large at {path[:80]}: at most {MOST_DEPTH} levels, {MOST_NODES} parts")
        _check(path, one)
        if isinstance(one, dict):
            seen.add(id(one))
            references |= {one["$ref"]} if "$ref" in one else set()
            _write_times(one)
            _simplify(one)
    for pointer in references:
        if id(resolve(schema, pointer, "#")) not in seen:
            raise Refusal(f"$ref to {pointer[:80]}, where no schema stands")
    if endless := unending(schema, references):
        raise Refusal(f"$ref to {min(endless)[:80]}: its values would have to hold themselves without end")
    if schema is False:
        raise Refusal("no value satisfies the schema false")
    return {} if schema is True else {key: value for key, value in schema.items() if key not in BASES}


def _write_times(schema: dict[str, Any]) -> None:
    """Replace dates and times: llguidance would write a year 0 and a second 60."""
    if schema.get("format") in OWN_FORMATS:
        schema["pattern"] = f"^(?:{FORMATS[schema.pop('format')]})$"


def _simplify(schema: dict[str, Any]) -> None:
    """Write what means the same as llguidance reads it: whole numbers without a point, no keyword that says nothing."""
    for key in COUNTS:
        if isinstance(value := schema.get(key), float):
            schema[key] = int(value)
    schema.pop("uniqueItems", None)


def _schemas(path: str, schema: Any, depth: int) -> Iterator[tuple[str, Any, int]]:
    """All schemas within ``schema``, itself first; the caller stops at what is no schema."""
    yield path, schema, depth
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in ONE:
            yield from _schemas(f"{path}/{key}", value, depth + 1)
        if key in LISTS and isinstance(value, list):
            for index, one in enumerate(value):
                yield from _schemas(f"{path}/{key}/{index}", one, depth + 1)
        if key in NAMED and isinstance(value, dict):
            for name, one in value.items():
                yield from _schemas(f"{path}/{key}/{name}", one, depth + 1)


def _check(path: str, schema: Any) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Refusal(f"{path} must be a schema, got {str(schema)[:40]}")
    for key, value in schema.items():
        if (key in COUNTS and isinstance(value, float) and value.is_integer()) or (
            key == "uniqueItems" and value is False
        ):
            continue
        if key not in KEYWORDS | ANNOTATIONS or (key in BASES and path != "#"):
            raise Refusal(f"the keyword {key[:80]!r} at {path} cannot be enforced")
        if key in SHAPES and not isinstance(value, SHAPES[key]):
            raise Refusal(f"{key} at {path} is malformed")
    types = schema.get("type", [])
    for one in types if isinstance(types, list) else [types]:
        if not isinstance(one, str) or one not in TYPES:
            raise Refusal(f"the type {str(one)[:40]!r} at {path} is unknown; known: {', '.join(sorted(TYPES))}")
    known = schema.get("format", "uuid")
    if known not in KNOWN_FORMATS or (known in OWN_FORMATS and "pattern" in schema):
        raise Refusal(f"the format {known[:40]!r} at {path} cannot be enforced")
    if not all(isinstance(name, str) for name in schema.get("required", ())):
        raise Refusal(f"required at {path} must hold names")
    if schema.get("minProperties", 0) > max(1, len(set(schema.get("required", ())))):
        raise Refusal(f"minProperties at {path} cannot be enforced beyond 1 and required: a name may come twice")
    if not str(schema.get("$ref", "#")).startswith("#"):
        raise Refusal(f"$ref at {path} must name a place in the same schema (#/...)")


COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
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
"""What the values of keywords must be."""
