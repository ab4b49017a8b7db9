"""A check that no value is allowed by two members of a ``oneOf``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Any

Resolve = Callable[[Any], Any]
"""Resolver from a ``$ref`` to its schema."""
MAX_HOPS = 8
MAX_MEMBERS = 64


def exclusive(members: Sequence[Any], resolve: Resolve) -> bool:
    """Return True if types, constants, or constants of a property that both require separate all of ``members``."""
    if len(members) > MAX_MEMBERS:
        return False
    results = [_alternatives(member, resolve, 0) for member in members]
    if sum(map(len, results)) > MAX_MEMBERS:
        return False
    return all(_apart(*pair, resolve) for item, other in combinations(results, 2) for pair in product(item, other))


def _alternatives(schema: Any, resolve: Resolve, hops: int) -> list[Any]:
    """Return the branches of a schema that is only a union, nested unions included; otherwise the schema alone."""
    schema = _followed(schema, resolve)
    unions = [key for key in ("anyOf", "oneOf") if isinstance(schema, dict) and isinstance(schema.get(key), list)]
    if len(unions) != 1 or hops > MAX_HOPS:
        return [schema]
    alternatives: list[Any] = []
    for item in schema[unions[0]][: MAX_MEMBERS + 1]:
        alternatives += _alternatives(item, resolve, hops + 1)
        if len(alternatives) > MAX_MEMBERS:
            break
    return alternatives


def _followed(schema: Any, resolve: Resolve) -> Any:
    for _ in range(MAX_HOPS):
        if not (isinstance(schema, dict) and "$ref" in schema):
            return schema
        schema = resolve(schema["$ref"])
    return True


def _apart(schema: Any, other: Any, resolve: Resolve) -> bool:
    if not isinstance(schema, dict) or not isinstance(other, dict):
        return False
    types, others = _types(schema), _types(other)
    if types and others and not types & others:
        return True
    if _differ(schema, other):
        return True
    if types != {"object"} or others != {"object"}:
        return False
    return any(
        _differ(_followed(_property(schema, name), resolve), _followed(_property(other, name), resolve))
        for name in schema.get("required", ())
        if name in other.get("required", ())
    )


def _property(schema: dict[str, Any], name: Any) -> Any:
    properties = schema.get("properties")
    return properties.get(name, True) if isinstance(properties, dict) else True


def _types(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types that the schema names; a number may be an integer."""
    declared = schema.get("type", ())
    types = {str(item) for item in (declared if isinstance(declared, list) else [declared] if declared else [])}
    return frozenset(types | ({"integer"} if "number" in types else set()))


def _differ(first: Any, other: Any) -> bool:
    constants, others = _constants(first), _constants(other)
    return constants is not None and others is not None and not constants & others


def _constants(schema: Any) -> set[str] | None:
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    return {canonical(value) for value in values}


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values. Values beyond the range of floats may share one."""
    return json.dumps(_comparable(value), sort_keys=True)


def _comparable(value: Any) -> Any:
    """Return a comparable form: numbers are equal in every notation, and ``true`` is no number."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, bool | str | None):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf
