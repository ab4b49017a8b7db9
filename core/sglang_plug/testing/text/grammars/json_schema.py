"""A validator of JSON texts for a few keywords of JSON Schema, written to be obviously right.

Slow and small on purpose. An assertion that it does not know raises ``NotImplementedError``; annotations, which are all
keywords that JSON Schema does not define, are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, DecimalException
from typing import Any, NoReturn

Check = Callable[[Any, Any, Any], bool]
"""``(value of the keyword, instance, root schema) -> allowed``; called for every instance, whatever its type."""
UNKNOWN = frozenset(
    "dependentSchemas dependencies unevaluatedProperties unevaluatedItems minContains maxContains additionalItems "
    "$dynamicRef $recursiveRef".split()
)
"""Assertions that the validator does not know."""


def is_allowed(text: str, schema: Any) -> bool:
    """Return True if ``text`` is a JSON value that ``schema`` allows, whichever of two equal keys a reader keeps."""
    try:
        readings = [_read(text, dict), _read(text, _first_kept)]
    except (ValueError, DecimalException):
        return False
    return all(_fits(reading, schema, schema) for reading in readings)


def _first_kept(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(reversed(pairs))


def _read(text: str, make: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> Any:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    value = json.loads(text, object_pairs_hook=make, parse_float=Decimal, parse_int=Decimal, parse_constant=refuse)
    json.dumps(value, default=str, ensure_ascii=False).encode()  # half a surrogate pair raises
    return value


def _fits(value: Any, schema: Any, root: Any) -> bool:
    if isinstance(schema, bool):
        return schema
    for keyword in schema.keys() & UNKNOWN:
        raise NotImplementedError(f"the judge of schemas does not know {keyword!r}")
    if value is None and schema.get("nullable") is True:  # OpenAPI
        return True
    if not all(
        CHECKS[keyword](keyword_value, value, root) for keyword, keyword_value in schema.items() if keyword in CHECKS
    ):
        return False
    return all(check(schema, value, root) for check in (_fits_rest, _fits_others, _fits_branch))


def _fits_rest(schema: Any, value: Any, root: Any) -> bool:
    items = value[len(schema.get("prefixItems", ())) :] if isinstance(value, list) else ()
    return all(_fits(item, schema.get("items", True), root) for item in items)


def _fits_others(schema: Any, value: Any, root: Any) -> bool:
    if not isinstance(value, dict):
        return True
    patterns = schema.get("patternProperties", {})
    named = {name for name in value if any(_finds(pattern, name) for pattern in patterns)} | schema.get(
        "properties", {}
    ).keys()
    return all(_fits(value[name], schema.get("additionalProperties", True), root) for name in value.keys() - named)


def _fits_branch(schema: Any, value: Any, root: Any) -> bool:
    if "if" not in schema:
        return True
    return _fits(value, schema.get("then" if _fits(value, schema["if"], root) else "else", True), root)


def _same(left: Any, right: Any) -> bool:
    """Compare JSON values: ``1`` equals ``1.0``, but not ``true``."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(value, right[name]) for name, value in left.items())
    return bool(left == right)


def _is_a(kind: str, value: Any) -> bool:
    match kind:
        case "integer":
            return isinstance(value, Decimal) and value == value.to_integral_value()
        case "number":
            return isinstance(value, Decimal)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
    return isinstance(value, {"string": str, "array": list, "object": dict}[kind])


def _for_type(kind: type, holds: Callable[[Any, Any], bool]) -> Check:
    """Make a check of a keyword that applies to one type only."""
    return lambda keyword_value, value, root: not isinstance(value, kind) or holds(keyword_value, value)


def _prefix(keyword_value: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, list) or all(
        _fits(item, schema, root) for item, schema in zip(value, keyword_value, strict=False)
    )


def _properties(keyword_value: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(
        _fits(value[name], keyword_value[name], root) for name in value if name in keyword_value
    )


def _patterns(keyword_value: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(
        _fits(item, schema, root)
        for name, item in value.items()
        for key, schema in keyword_value.items()
        if _finds(key, name)
    )


def _names(keyword_value: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(_fits(name, keyword_value, root) for name in value)


def _contains(keyword_value: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, list) or any(_fits(item, keyword_value, root) for item in value)


def _reference(keyword_value: str, value: Any, root: Any) -> bool:
    schema = root
    for name in keyword_value.removeprefix("#").split("/")[1:]:
        schema = schema[name]
    return _fits(value, schema, root)


def _finds(pattern: str, text: str) -> bool:
    """Search like ECMAScript, where ``$`` matches only at the very end and digits are ASCII."""
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text, re.ASCII) is not None


def _unique(keyword_value: Any, value: Any) -> bool:
    return not keyword_value or not any(
        _same(item, other) for index, item in enumerate(value) for other in value[:index]
    )


FORMATS: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(
        r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
        r"|02-(?:0[1-9]|[12][0-9]))"
    ),
    "ipv4": re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!$)|$)){4}"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}
"""The supported formats; a 29th of February passes in any year."""
CHECKS: Mapping[str, Check] = {
    "type": lambda keyword_value, value, root: any(
        _is_a(item, value) for item in ([keyword_value] if isinstance(keyword_value, str) else keyword_value)
    ),
    "enum": lambda keyword_value, value, root: any(_same(_decimal(item), value) for item in keyword_value),
    "const": lambda keyword_value, value, root: _same(_decimal(keyword_value), value),
    "anyOf": lambda keyword_value, value, root: any(_fits(value, item, root) for item in keyword_value),
    "oneOf": lambda keyword_value, value, root: sum(_fits(value, item, root) for item in keyword_value) == 1,
    "allOf": lambda keyword_value, value, root: all(_fits(value, item, root) for item in keyword_value),
    "not": lambda keyword_value, value, root: not _fits(value, keyword_value, root),
    "$ref": _reference,
    "prefixItems": _prefix,
    "contains": _contains,
    "uniqueItems": _for_type(list, _unique),
    "minItems": _for_type(list, lambda keyword_value, value: len(value) >= keyword_value),
    "maxItems": _for_type(list, lambda keyword_value, value: len(value) <= keyword_value),
    "properties": _properties,
    "patternProperties": _patterns,
    "propertyNames": _names,
    "required": _for_type(dict, lambda keyword_value, value: value.keys() >= set(keyword_value)),
    "dependentRequired": _for_type(
        dict,
        lambda keyword_value, value: all(
            value.keys() >= set(names) for key, names in keyword_value.items() if key in value
        ),
    ),
    "minProperties": _for_type(dict, lambda keyword_value, value: len(value) >= keyword_value),
    "maxProperties": _for_type(dict, lambda keyword_value, value: len(value) <= keyword_value),
    "minLength": _for_type(str, lambda keyword_value, value: len(value) >= keyword_value),
    "maxLength": _for_type(str, lambda keyword_value, value: len(value) <= keyword_value),
    "pattern": _for_type(str, lambda keyword_value, value: _finds(keyword_value, value)),
    "format": _for_type(str, lambda keyword_value, value: FORMATS[keyword_value].fullmatch(value) is not None),
    "minimum": _for_type(Decimal, lambda keyword_value, value: value >= _decimal(keyword_value)),
    "maximum": _for_type(Decimal, lambda keyword_value, value: value <= _decimal(keyword_value)),
    "exclusiveMinimum": _for_type(Decimal, lambda keyword_value, value: value > _decimal(keyword_value)),
    "exclusiveMaximum": _for_type(Decimal, lambda keyword_value, value: value < _decimal(keyword_value)),
    "multipleOf": _for_type(Decimal, lambda keyword_value, value: (value / _decimal(keyword_value)) % 1 == 0),
}


def _decimal(value: Any) -> Any:
    """Convert numbers in ``value`` of a schema to the type that they have in instances."""
    match value:
        case bool():
            return value
        case int() | float():
            return Decimal(repr(value))
        case list():
            return [_decimal(item) for item in value]
        case dict():
            return {name: _decimal(item) for name, item in value.items()}
    return value
