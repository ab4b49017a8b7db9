"""Whether no value can be allowed by two members of a ``oneOf``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

Resolve = Callable[[Any], Any]
"""The schema that a ``$ref`` names."""
MOST_HOPS = 8
MOST_MEMBERS = 64


def exclusive(members: Sequence[Any], resolve: Resolve) -> bool:
    """True if types, constants, or constants of a property that both require, keep every two of ``members`` apart."""
    if len(members) > MOST_MEMBERS:
        return False
    found = [_followed(one, resolve) for one in members]
    return all(_apart(one, other, resolve) for one, other in combinations(found, 2))


def _followed(schema: Any, resolve: Resolve) -> Any:
    for _ in range(MOST_HOPS):
        if not (isinstance(schema, dict) and "$ref" in schema):
            return schema
        schema = resolve(schema["$ref"])
    return True


def _apart(one: Any, other: Any, resolve: Resolve) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    types, others = _types(one), _types(other)
    if types and others and not types & others:
        return True
    if _differ(one, other):
        return True
    if types != {"object"} or others != {"object"}:
        return False
    return any(
        _differ(_followed(_property(one, name), resolve), _followed(_property(other, name), resolve))
        for name in one.get("required", ())
        if name in other.get("required", ())
    )


def _property(schema: dict[str, Any], name: Any) -> Any:
    properties = schema.get("properties")
    return properties.get(name, True) if isinstance(properties, dict) else True


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """The types that the schema names; a number may be an integer."""
    given = schema.get("type", ())
    types = {str(one) for one in (given if isinstance(given, list) else [given] if given else [])}
    return frozenset(types | ({"integer"} if "number" in types else set()))


def _differ(one: Any, other: Any) -> bool:
    constants, others = _constants(one), _constants(other)
    return constants is not None and others is not None and not constants & others


def _constants(schema: Any) -> set[str] | None:
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return {json.dumps(_comparable(one), sort_keys=True) for one in values}


def _comparable(value: Any) -> Any:
    """Numbers are equal however they are written; ``true`` is no number."""
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in value.items()}
    return value if isinstance(value, bool | str | None) else float(value)
