"""``$ref`` within one schema, and which of its parts can be written at all."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from .refusal import Refusal


def resolve(root: Any, pointer: str, path: str) -> Any:
    """The part of ``root`` that ``pointer`` names. Raises ``Refusal``."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        raise Refusal(f"$ref at {path} must name a place in the same schema (#/...), got {str(pointer)[:80]!r}")
    found = root
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isascii() and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise Refusal(f"$ref at {path} names {pointer[:80]!r}, which is not there")
    return found


def unending(root: Any, pointers: set[str]) -> set[str]:
    """Those of ``pointers`` whose values would have to hold themselves without end."""
    ending = set[str]()
    while True:
        found = {one for one in pointers - ending if _can_end(resolve(root, one, "#"), ending)}
        if not found:
            return pointers - ending
        ending |= found


def _can_end(schema: Any, ending: set[str]) -> bool:
    """True if the schema has a finite value, given references that have."""
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema:
        return schema["$ref"] in ending
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return any(_can_end(one, ending) for one in schema[name])
    if "allOf" in schema:
        return all(_can_end(one, ending) for one in schema["allOf"])
    kind = schema.get("type")
    if isinstance(kind, list) and set(kind) - {"object", "array"}:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not all(_can_end(properties[name], ending) for name in required if name in properties):
        return False
    least, first = schema.get("minItems", 0), schema.get("prefixItems", ())
    items = [*first[:least], *([schema["items"]] if least > len(first) and "items" in schema else ())]
    return all(_can_end(one, ending) for one in items)
