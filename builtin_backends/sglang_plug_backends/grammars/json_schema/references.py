"""Resolution of ``$ref`` within one schema, and detection of schemas without finite values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from sglang_plug_backends.grammars.refusal import Refusal

MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Target:
    """A schema and its location. It may also replace a reference to itself."""

    schema: Any
    path: str
    """Path for messages."""
    resource: Any
    """The innermost enclosing schema with an ``$id``, or the document: the base of its references."""

    def child(self, schema: Any, path: str) -> Target:
        """Return the target for a part of this one; ``path`` leads from here to it."""
        return Target(schema, f"{self.path}/{path}", schema if starts_resource(schema) else self.resource)


def starts_resource(schema: Any) -> bool:
    """Return whether references in ``schema`` begin at ``schema``. An ``$id`` with a fragment alone is an anchor."""
    return isinstance(schema, dict) and isinstance(name := schema.get("$id"), str) and not name.startswith("#")


def find_target(root: Any, reference: Any, where: Target) -> Target:
    """Find the schema that ``reference`` in ``where`` names in the document ``root``. Raises ``Refusal``."""
    if isinstance(reference, Target):
        return reference
    path = f"{where.path}/$ref"
    if where.resource is not root:
        try:
            return _target(where.resource, reference, path)
        except Refusal:  # many generators resolve from the document's root anyway
            pass
    return _target(root, reference, path)


def _target(resource: Any, pointer: Any, path: str) -> Target:
    for value in _walk(resource, pointer, path):
        if starts_resource(value):
            resource = value
    return Target(value, pointer[: 2 * MAX_SHOWN], resource)


def resolve(root: Any, pointer: Any, path: str) -> Any:
    """Return the part of ``root`` that ``pointer`` names. Raises ``Refusal``."""
    *_, result = _walk(root, pointer, path)
    return result


def _walk(root: Any, pointer: Any, path: str) -> Iterator[Any]:
    """Yield every value on the path from ``root`` to the target of ``pointer``. Raises ``Refusal``."""
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        raise Refusal(f"$ref at {path} must point into the same schema (#/...), got {str(pointer)[:MAX_SHOWN]!r}")
    result = root
    yield result
    for part in pointer.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(result, dict) and name in result:
            result = result[name]
        elif isinstance(result, list) and name.isascii() and name.isdigit() and int(name) < len(result):
            result = result[int(name)]
        else:
            raise Refusal(f"$ref at {path} refers to {pointer[:MAX_SHOWN]!r}, which does not exist")
        yield result


def unending(root: Any, pointers: set[str]) -> set[str]:
    """Return the ``pointers`` whose values would have to contain themselves infinitely."""
    ending = set[str]()
    while True:
        results = {pointer for pointer in pointers - ending if _can_end(resolve(root, pointer, "#"), ending)}
        if not results:
            return pointers - ending
        ending |= results


def _can_end(schema: Any, ending: set[str]) -> bool:
    """Return True if the schema has a finite value, given references that have."""
    if not isinstance(schema, dict):
        return bool(schema)
    if "$ref" in schema:
        return schema["$ref"] in ending
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return any(_can_end(item, ending) for item in schema[name])
    if "allOf" in schema:
        return all(_can_end(item, ending) for item in schema["allOf"])
    kind = schema.get("type")
    if isinstance(kind, list) and set(kind) - {"object", "array"}:
        return True
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not all(_can_end(properties[name], ending) for name in required if name in properties):
        return False
    minimum, first = schema.get("minItems", 0), schema.get("prefixItems", ())
    items = [*first[:minimum], *([schema["items"]] if minimum > len(first) and "items" in schema else ())]
    return all(_can_end(item, ending) for item in items)
