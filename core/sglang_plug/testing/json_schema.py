"""Whether a text is a JSON value that a schema allows: a judge for a few keywords, made to be obviously right.

Slow and small on purpose. A keyword that it does not know raises ``NotImplementedError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, DecimalException
from typing import Any, NoReturn

Check = Callable[[Any, Any, Any], bool]
"""``(value of the keyword, instance, root schema) -> allowed``; called for every instance, whatever its type."""
IGNORED = frozenset({"$defs", "additionalProperties", "items", "if", "then", "else"})
"""Read together with other keywords, or not at all."""


def is_allowed(text: str, schema: Any) -> bool:
    """True if ``text`` is one JSON value that ``schema`` allows, whichever of two equal keys a reader keeps."""
    try:
        readings = [_read(text, dict), _read(text, _first_kept)]
    except (ValueError, DecimalException):
        return False
    return all(_fits(one, schema, schema) for one in readings)


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
    for keyword in schema.keys() - CHECKS.keys() - IGNORED:
        raise NotImplementedError(f"the judge of schemas does not know {keyword!r}")
    if not all(CHECKS[keyword](given, value, root) for keyword, given in schema.items() if keyword in CHECKS):
        return False
    return all(check(schema, value, root) for check in (_fits_rest, _fits_others, _fits_branch))


def _fits_rest(schema: Any, value: Any, root: Any) -> bool:
    rest = value[len(schema.get("prefixItems", ())) :] if isinstance(value, list) else ()
    return all(_fits(one, schema.get("items", True), root) for one in rest)


def _fits_others(schema: Any, value: Any, root: Any) -> bool:
    if not isinstance(value, dict):
        return True
    patterns = schema.get("patternProperties", {})
    named = {name for name in value if any(_finds(one, name) for one in patterns)} | schema.get("properties", {}).keys()
    return all(_fits(value[name], schema.get("additionalProperties", True), root) for name in value.keys() - named)


def _fits_branch(schema: Any, value: Any, root: Any) -> bool:
    if "if" not in schema:
        return True
    return _fits(value, schema.get("then" if _fits(value, schema["if"], root) else "else", True), root)


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON values: ``1`` is ``1.0`` and not ``true``."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    return bool(one == other)


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


def _of(kind: type, holds: Callable[[Any, Any], bool]) -> Check:
    """A keyword that is about one type only."""
    return lambda given, value, root: not isinstance(value, kind) or holds(given, value)


def _prefix(given: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, list) or all(
        _fits(one, schema, root) for one, schema in zip(value, given, strict=False)
    )


def _properties(given: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(_fits(value[name], given[name], root) for name in value if name in given)


def _patterns(given: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(
        _fits(one, schema, root) for name, one in value.items() for key, schema in given.items() if _finds(key, name)
    )


def _names(given: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, dict) or all(_fits(name, given, root) for name in value)


def _contains(given: Any, value: Any, root: Any) -> bool:
    return not isinstance(value, list) or any(_fits(one, given, root) for one in value)


def _reference(given: str, value: Any, root: Any) -> bool:
    schema = root
    for name in given.removeprefix("#").split("/")[1:]:
        schema = schema[name]
    return _fits(value, schema, root)


def _finds(pattern: str, text: str) -> bool:
    """As ECMAScript searches, which takes ``$`` for the very end, and ASCII only for digits."""
    return re.search(re.sub(r"\$$", r"\\Z", pattern), text, re.ASCII) is not None


def _unique(given: Any, value: Any) -> bool:
    return not given or not any(_same(one, other) for at, one in enumerate(value) for other in value[:at])


FORMATS: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(
        r"[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
        r"|02-(?:0[1-9]|[12][0-9]))"
    ),
    "ipv4": re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!$)|$)){4}"),
    "uuid": re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
}
"""Some formats; a 29th of February passes in any year."""
CHECKS: Mapping[str, Check] = {
    "type": lambda given, value, root: any(_is_a(one, value) for one in ([given] if isinstance(given, str) else given)),
    "enum": lambda given, value, root: any(_same(_decimal(one), value) for one in given),
    "const": lambda given, value, root: _same(_decimal(given), value),
    "anyOf": lambda given, value, root: any(_fits(value, one, root) for one in given),
    "oneOf": lambda given, value, root: sum(_fits(value, one, root) for one in given) == 1,
    "allOf": lambda given, value, root: all(_fits(value, one, root) for one in given),
    "not": lambda given, value, root: not _fits(value, given, root),
    "$ref": _reference,
    "prefixItems": _prefix,
    "contains": _contains,
    "uniqueItems": _of(list, _unique),
    "minItems": _of(list, lambda given, value: len(value) >= given),
    "maxItems": _of(list, lambda given, value: len(value) <= given),
    "properties": _properties,
    "patternProperties": _patterns,
    "propertyNames": _names,
    "required": _of(dict, lambda given, value: value.keys() >= set(given)),
    "dependentRequired": _of(
        dict, lambda given, value: all(value.keys() >= set(names) for key, names in given.items() if key in value)
    ),
    "minProperties": _of(dict, lambda given, value: len(value) >= given),
    "maxProperties": _of(dict, lambda given, value: len(value) <= given),
    "minLength": _of(str, lambda given, value: len(value) >= given),
    "maxLength": _of(str, lambda given, value: len(value) <= given),
    "pattern": _of(str, lambda given, value: _finds(given, value)),
    "format": _of(str, lambda given, value: FORMATS[given].fullmatch(value) is not None),
    "minimum": _of(Decimal, lambda given, value: value >= _decimal(given)),
    "maximum": _of(Decimal, lambda given, value: value <= _decimal(given)),
    "exclusiveMinimum": _of(Decimal, lambda given, value: value > _decimal(given)),
    "exclusiveMaximum": _of(Decimal, lambda given, value: value < _decimal(given)),
    "multipleOf": _of(Decimal, lambda given, value: (value / _decimal(given)) % 1 == 0),
}


def _decimal(value: Any) -> Any:
    """``value`` of a schema with its numbers as instances have them."""
    match value:
        case bool():
            return value
        case int() | float():
            return Decimal(repr(value))
        case list():
            return [_decimal(one) for one in value]
        case dict():
            return {name: _decimal(one) for name, one in value.items()}
    return value
